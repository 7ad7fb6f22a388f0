// Runs a program: segments between cuts, each a parallel walk over tiles in a fixed division, so
// that results are the same bits for any number of threads.
#pragma once
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "channel_rows.h"
#include "convolution.h"
#include "division.h"
#include "laps.h"
#include "output.h"
#include "parallel.h"
#include "source.h"
#include "tile_steps.h"

namespace TF_NAMESPACE {

constexpr int64_t STREAM_BYTES = 24 << 20;  // of output: what the last-level cache does not keep anyway

template <class T> class Engine {
  public:
    Engine(const transfuse_program& program, bool sideways, int threads, double* seconds)
        : threads(threads),
          done(seconds),
          source(program, threads),
          p(Division<T>::parts(program, sideways, source.inputs)),
          division(p, source.inputs),
          at(division.at),
          steps(p, at, threads) {
        if (pool_of(program)) done();
    }

    void run() {
        int64_t last = 0;  // the output's last element
        const Level& level = at.back();
        const int64_t sizes[5] = {p.batch, p.parts * level.channels.count, level.extents[0], level.extents[1],
                                  level.extents[2]};
        for (int i = 0; i < 5; i++) last += (sizes[i] - 1) * p.output_strides[i];
        const int64_t bytes = last * bytes_of(p.output_element);
        expect_writes(p.output, size_t(bytes));
        streams = bytes > STREAM_BYTES;
        if (ChannelRows<T>::serves(p, source)) {
            by_rows();
            return done();
        }
        size_t begin = 0;  // the step before which values lie in memory
        size_t fresh = 0;  // gathering steps before this one are done
        while (true) {
            size_t end = fresh;
            while (end < size_t(p.steps_count) && p.steps[end].op != TF_CUT) end++;
            if (end == size_t(p.steps_count)) {
                segment(begin, fresh, end, nullptr);
                return done();
            }
            if (p.steps[end].i0 == 0 && fits_output(end)) {
                segment(begin, fresh, end, nullptr);
                done();
                in_place(end + 1);
                return done();
            }
            if (p.steps[end].i0 == 0) {
                const Level& level = at[end];
                Buffer<T> values = allocate<T>(p.batch * level.extents[0] * level.extents[1] *
                                               level.extents[2] * level.channels.slots);
                segment(begin, fresh, end, values.get());
                stored = std::move(values);
                begin = end + 1;
            } else {
                segment(begin, fresh, end, &nowhere);
            }
            done();
            fresh = end + 1;
        }
    }

  private:
    const int threads;
    Laps done;
    const Source<T> source;
    const Layer p;
    const Division<T> division;
    const std::vector<Level>& at;  // before each step, and after the last
    TileSteps<T> steps;
    bool streams = false;  // whether the output is beyond the caches
    Buffer<T> stored;
    T nowhere = 0;  // its address, given as the place for values, says to keep none: only the statistic

    void by_rows() {
        const Level& level = at.back();
        const int64_t* e = level.extents;
        const ChannelRows<T> rows(p, source, e);
        const int64_t some = std::max<int64_t>(1, ROWS_VALUES / e[2]);
        const Box whole = {{0, 0, 0}, {e[0], e[1], e[2]}};
        const int useful = division.is_little(0, p.batch) ? 1 : threads;
        in_parallel(useful, ceiling(rows.count(), some), [&] { return rows.own(steps.room()); }, [&](auto& own, int64_t i) {
            const auto rest = [&](T* values, int64_t n, int64_t sample, int64_t c, int64_t first) {
                const Tile<T> tile = {whole, level.channels, nullptr, nullptr, sample, 0, 0};
                for (size_t k = 0; k < size_t(p.steps_count); k++) steps.row(k, values, n, c, tile, first, own.beside.get());
            };
            rows.rows(own, i * some, std::min(rows.count(), (i + 1) * some), rest);
        });
    }

    // One walk over all tiles; the values go to `keep`, to the output where it is null.
    void segment(size_t begin, size_t fresh, size_t end, T* keep) {
        int64_t size[3], counts[3];
        division.divide(begin, fresh, end, size);
        division.halve(begin, fresh, end, size);
        for (int a = 0; a < 3; a++) counts[a] = (at[end].extents[a] + size[a] - 1) / size[a];
        const int64_t per_sample = counts[0] * counts[1] * counts[2], tiles = p.batch * per_sample;
        // The parts of a tile one after another: a thread that takes several reads the inputs once.
        for (size_t i = fresh; i < end; i++)
            if (is_stats(p.steps[i].op)) steps.gathered.start(i, tiles);
        const int64_t count = division.room(begin, fresh, end, size);
        const bool direct = !keep && lies_in_output(begin, end, size), biased = begin == 0 && begins_with_bias();
        // What each thread has for itself, and what it does with tile t.
        struct Own {
            Buffer<T> values, spare;
            Convolution<T> convolve;
            std::vector<Moments> moments;
            Buffer<T> beside;
        };
        const auto prepare = [&] {
            return Own{allocate<T>(count), allocate<T>(count),
                       {p, source.data, source.element, source.strides, source.inputs}, {}, allocate<T>(steps.room())};
        };
        const int useful = division.is_little(begin, p.batch) ? 1 : threads;
        in_parallel(useful, tiles * p.parts, prepare, [&](Own& own, int64_t i) {
            // The last tile of every sample, the smallest, comes last of all: threads end at about the same time.
            const int64_t others = per_sample - 1, part = i % p.parts, late = i / p.parts - p.batch * others;
            const int64_t n = late < 0 ? i / p.parts / others : late;
            const int64_t k = late < 0 ? i / p.parts % others : others, t = n * per_sample + k;
            const int64_t index[3] = {k / counts[2] / counts[1], k / counts[2] % counts[1], k % counts[2]};
            const auto found = division.boxes(begin, fresh, end, division.tile_at(index, size, at[end].extents));
            T* values = direct ? static_cast<T*>(p.output) + offset(n, found[0]) : own.values.get();
            Tile<T> tile = {found[0], at[begin].channels, values, own.spare.get(), n, part, t};
            if (begin == 0)
                own.convolve(tile, biased ? steps.line(0, tile) : nullptr);
            else
                fetch(tile, begin);
            for (size_t i = begin + biased; i < end;) {
                size_t next = i;
                while (next < end && (is_position(p.steps[next].op) || p.steps[next].op == TF_CUT)) next++;
                if (next > i)
                    steps.positions(tile, i, next, own.beside.get());
                else
                    steps.step(tile, i, found[++next - begin], i >= fresh, own.moments);
                i = next;
            }
            if (!keep && !direct)
                write(p, tile, streams);
            else if (keep && keep != &nowhere)
                save(tile, end, keep);
        });
        for (size_t i = fresh; i < end; i++)
            if (is_stats(p.steps[i].op)) steps.gathered.finish(i, per_sample);
    }

    // Whether the first step is a bias that the convolution's sums have in them.
    bool begins_with_bias() const { return p.steps_count && p.steps[0].op == TF_ADD && Convolution<T>::takes_bias(p); }

    // Whether tiles of this size are what the output holds there, so that they can be computed in it: channels last, one
    // position after another, and no step that changes their shape.
    bool lies_in_output(size_t begin, size_t end, const int64_t* size) const {
        const Channels c = begin == 0 ? tile_channels<T>(p) : at[begin].channels;
        const int64_t *e = at[end].extents, *st = p.output_strides;
        for (size_t i = begin; i < end; i++)
            if (is_window(p.steps[i].op) || p.steps[i].op == TF_SUM) return false;
        // Axes that a tile takes whole, the last ones, and one more of which it takes a part.
        bool one = st[1] == 1 && c.slots == c.count && p.parts == 1 && p.output_element == COMPUTED<T>;
        int64_t next = c.slots;
        for (int a = 2; a >= 0; a--) {
            if (size[a] > 1) one = one && st[2 + a] == next;
            next = size[a] == e[a] ? next * e[a] : 0;
        }
        return one;
    }
    int64_t offset(int64_t sample, const Box& box) const {
        int64_t found = sample * p.output_strides[0];
        for (int a = 0; a < 3; a++) found += box.lo[a] * p.output_strides[2 + a];
        return found;
    }

    // ---- the output as the place for values that cross a cut ---------------------------------

    // Whether the rest of the steps from a cut on works on single elements, so that values can wait
    // in the output, in its own type.
    bool fits_output(size_t cut) const {
        for (size_t i = cut + 1; i < size_t(p.steps_count); i++)
            if (!is_element(p.steps[i].op)) return false;
        return p.output_element == COMPUTED<T> && p.output_strides[4] == 1;
    }

    // Element steps from `begin` on, where the values lie in the output.
    void in_place(size_t begin) {
        const Level& level = at.back();
        const int64_t *st = p.output_strides, *e = level.extents;
        // Rows that follow one another make one.
        int64_t length = e[2], rows = e[1], planes = e[0];
        if (st[3] == length || rows == 1) length *= rows, rows = 1;
        if (rows == 1 && (st[2] == length || planes == 1)) length *= planes, planes = 1;
        const int64_t parts = (length + BLOCK - 1) / BLOCK;
        const int64_t work = p.batch * level.channels.count * planes * rows * parts;
        const Buffer<T> others = allocate<T>(threads * steps.room());
        const Box whole = {{0, 0, 0}, {e[0], e[1], e[2]}};
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < work; i++) {
            int64_t part = i % parts, row = i / parts % rows, plane = i / parts / rows % planes;
            int64_t c = i / parts / rows / planes % level.channels.count;
            int64_t sample = i / parts / rows / planes / level.channels.count;
            T* v = static_cast<T*>(p.output) + sample * st[0] + c * st[1] + plane * st[2] + row * st[3] +
                   part * BLOCK;
            const int64_t n = std::min(BLOCK, length - part * BLOCK), first = (plane * rows + row) * length + part * BLOCK;
            const Tile<T> tile = {whole, level.channels, nullptr, nullptr, sample, 0, 0};
            for (size_t k = begin; k < size_t(p.steps_count); k++)
                steps.row(k, v, n, c, tile, first, others.get() + omp_get_thread_num() * steps.room());
        }
    }

    // ---- memory ----------------------------------------------------------------------------

    // Stored values are [sample][depth][height][width][slot].
    template <class F> void each_row(Tile<T>& tile, size_t level, T* memory, F f) const {
        const int64_t* e = at[level].extents;
        const int64_t slots = tile.channels.slots, n = tile.box.size(2) * slots;
        for (int64_t d = tile.box.lo[0]; d < tile.box.hi[0]; d++)
            for (int64_t h = tile.box.lo[1]; h < tile.box.hi[1]; h++)
                f(memory + (((tile.n * e[0] + d) * e[1] + h) * e[2] + tile.box.lo[2]) * slots,
                  tile.at(tile.box.at(d, h, tile.box.lo[2])), n * int64_t(sizeof(T)));
    }
    void fetch(Tile<T>& tile, size_t level) {
        each_row(tile, level, stored.get(), [](T* m, T* v, int64_t n) { memcpy(v, m, n); });
    }
    void save(Tile<T>& tile, size_t level, T* memory) {
        each_row(tile, level, memory, [](T* m, T* v, int64_t n) { memcpy(m, v, n); });
    }
};

}  // namespace TF_NAMESPACE

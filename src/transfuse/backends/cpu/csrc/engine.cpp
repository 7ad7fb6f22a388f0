// Runs a program: segments between cuts, each a parallel walk over tiles in a fixed division, so
// that results are the same bits for any number of threads. Compiled once per instruction set.
#include "engine.h"

#include <utility>

#include "block.h"
#include "convolution.h"
#include "digest.h"
#include "division.h"
#include "flat.h"
#include "laps.h"
#include "map.h"
#include "output.h"
#include "parallel.h"
#include "sideways.h"
#include "source.h"
#include "statistics.h"

namespace TF_NAMESPACE {

constexpr int64_t BLOCK = 4096;  // values that go through several steps in the first-level cache
constexpr int64_t STREAM_BYTES = 24 << 20;  // of output: what the last-level cache does not keep anyway

template <class T> class Engine {
  public:
    Engine(const transfuse_program& program, bool sideways, int threads, double* seconds)
        : threads(threads),
          done(seconds),
          source(program, threads),
          p(Division<T>::parts(program, sideways, source.inputs)),
          division(p, source.inputs),
          at(division.at) {
        if (program.pooled) done();
        for (int i = 0; i < p.steps_count; i++) {
            lines.push_back(operand(p.steps[i], at[i].channels));
            maps.emplace_back(p.steps[i].op == TF_MAP ? &p.steps[i].map->code : nullptr);
            const int64_t line = std::max(BLOCK, at[i].channels.slots);
            int64_t room = 0;
            for (int k = 0; k < maps[i].operands(); k++) room += varies(p.steps[i].map->operands[k]) ? line : 0;
            beside = std::max(beside, room);
        }
        statistics.resize(p.steps_count);
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
    bool streams = false;  // whether the output is beyond the caches
    Buffer<T> stored;
    T nowhere = 0;  // its address, given as the place for values, says to keep none: only the statistic
    std::vector<std::vector<T>> lines;  // each step's operand by slot
    std::vector<Map<T>> maps;  // by the step
    int64_t beside = 0;  // values of the operands of a block, for the map that reads most
    std::vector<Statistic<T>> statistics;  // by the step that gathers

    std::vector<T> operand(const transfuse_step& s, Channels c) const {
        // Parts are whole vectors, so those of all channels follow one another.
        for (int64_t* each : {&c.count, &c.per_group, &c.padded, &c.slots}) *each *= p.parts;
        if (s.op == TF_NORM) return norm(s, c);
        if (s.op == TF_MAP) return map_lines(s, c);
        const bool constant = (s.op == TF_ADD || s.op == TF_SCALE) && !s.t0;
        return constant ? std::vector<T>(c.slots, T(s.f0)) : by_slot(s.t0, c, T(s.op == TF_ADD ? 0 : 1));
    }

    // Three lines, one after another: (x - mean) * scale + bias.
    std::vector<T> norm(const transfuse_step& s, const Channels& c) const {
        std::vector<T> line = by_slot(s.t2, c, 0), scale = by_slot(s.t0, c, 1);
        const auto var = by_slot(s.t3, c, 1), bias = by_slot(s.t1, c, 0);
        for (int64_t k = 0; k < c.slots; k++) scale[k] = T(double(scale[k]) / std::sqrt(double(var[k]) + s.f0));
        line.insert(line.end(), scale.begin(), scale.end());
        line.insert(line.end(), bias.begin(), bias.end());
        return line;
    }

    // The values of a strip: whole positions as long as they fit, else a part of one.
    static int64_t strip_of(int64_t slots) {
        constexpr int64_t most = STRIP * LANES<T>;
        return slots > most ? most : most / slots * slots;
    }

    // Each operand of a map by slot, for each part as often as there are positions in a strip.
    std::vector<T> map_lines(const transfuse_step& s, const Channels& c) const {
        std::vector<T> all;
        const int64_t slots = c.slots / p.parts, times = std::max<int64_t>(1, strip_of(slots) / slots);
        for (int i = 0; i < s.map->code.operands_count; i++) {
            const transfuse_operand& operand = s.map->operands[i];
            if (varies(operand)) {  // read block by block
                all.resize(all.size() + p.parts * std::max(slots, strip_of(slots)));
                continue;
            }
            std::vector<T> line(c.slots);
            for (int64_t k = 0; k < c.count; k++)
                load_row(operand.element, operand.data, k * operand.strides[1], 1, 1, &line[c.slot(k)]);
            for (int64_t part = 0; part < p.parts; part++)
                for (int64_t k = 0; k < times; k++)
                    all.insert(all.end(), line.begin() + part * slots, line.begin() + (part + 1) * slots);
        }
        return all;
    }

    // Whether an operand has more than one value per channel.
    static bool varies(const transfuse_operand& operand) {
        const int64_t* s = operand.strides;
        return s[0] || s[2] || s[3] || s[4];
    }

    // Calls f(i, n, at) for `count` positions of a box, row by row: from the i-th on there are
    // n in a row, and the values of an operand for them begin at `at`.
    template <class F>
    static void each_run(const transfuse_operand& operand, const Box& box, int64_t sample, int64_t first, int64_t count, F f) {
        const int64_t* s = operand.strides;
        for (int64_t i = 0, n; i < count; i += n) {
            const int64_t p = first + i, w = p % box.size(2), row = p / box.size(2);
            n = std::min(count - i, box.size(2) - w);
            f(i, n, sample * s[0] + (box.lo[0] + row / box.size(1)) * s[2] + (box.lo[1] + row % box.size(1)) * s[3] +
                        (box.lo[2] + w) * s[4]);
        }
    }

    // The operands of map `i` that vary, for `count` positions of a tile: [position][slot], one after another.
    void read_beside(size_t i, const Tile<T>& tile, int64_t first, int64_t count, T* to) const {
        const Channels& c = tile.channels;
        for (int k = 0; k < maps[i].operands(); k++) {
            const transfuse_operand& operand = p.steps[i].map->operands[k];
            if (!varies(operand)) continue;
            each_run(operand, tile.box, tile.n, first, count, [&](int64_t at, int64_t n, int64_t from) {
                for (int64_t g = 0; g < c.count; g += c.per_group)
                    copy_block(operand.element, operand.data, from + (tile.first_channel() + g) * operand.strides[1],
                               {n, c.per_group}, {operand.strides[4], operand.strides[1]},
                               to + at * c.slots + c.slot(g), c.slots);
            });
            to += std::max(BLOCK, c.slots);
        }
    }

    // The operands of map `i` from slot `slot` of a part on: strips, or for one channel its numbers. Those that vary
    // are `others`, for the values from `offset` on.
    void map_operands(size_t i, int64_t part, int64_t slot, bool alone, const T* others, int64_t offset,
                      From<T>* found) const {
        const int64_t slots = at[i].channels.slots, room = std::max(slots, strip_of(slots));
        for (int k = 0; k < maps[i].operands(); k++) {
            const T* line = &lines[i][(k * p.parts + part) * room + slot];
            found[k] = alone ? From<T>{nullptr, *line} : From<T>{line, T(0)};
            if (!varies(p.steps[i].map->operands[k])) continue;
            found[k] = {others + offset, T(0)};
            others += std::max(BLOCK, slots);
        }
    }

    void map_positions(size_t i, Tile<T>& block, const T* others) const {
        const int64_t slots = block.channels.slots, strip = strip_of(slots), all = block.box.positions() * slots;
        From<T> from[UINT8_MAX];
        for (int64_t k = 0, count; k < all; k += count) {
            const int64_t slot = strip < slots ? k % slots : 0;
            count = std::min(strip, strip < slots ? slots - slot : all - k);
            map_operands(i, block.part, slot, false, others, k, from);
            maps[i](block.values + k, count, from);
        }
    }

    // Values of one channel, those of `tile` from the position `first` on.
    void map_row(size_t i, T* v, int64_t n, int64_t c, const Tile<T>& tile, int64_t first, T* others) const {
        From<T> from[UINT8_MAX];
        T* to = others;
        for (int k = 0; k < maps[i].operands(); k++) {
            const transfuse_operand& operand = p.steps[i].map->operands[k];
            if (!varies(operand)) continue;
            each_run(operand, tile.box, tile.n, first, n, [&](int64_t at, int64_t some, int64_t base) {
                copy_block(operand.element, operand.data, base + c * operand.strides[1], {1, some},
                           {0, operand.strides[4]}, to + at, some);
            });
            to += std::max(BLOCK, tile.channels.slots);
        }
        map_operands(i, 0, tile.channels.slot(c), true, others, 0, from);
        maps[i](v, n, from);
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
            if (is_stats(p.steps[i].op)) start(i, tiles);
        const int64_t count = division.room(begin, fresh, end, size);
        // What each thread has for itself, and what it does with tile t.
        struct Own {
            Buffer<T> values, spare;
            Convolution<T> convolve;
            std::vector<Moments> moments;
            Buffer<T> beside;
        };
        const auto prepare = [&] {
            return Own{allocate<T>(count), allocate<T>(count),
                       {p, source.data, source.element, source.strides, source.inputs}, {}, allocate<T>(beside)};
        };
        const int useful = division.is_little(begin, p.batch) ? 1 : threads;
        in_parallel(useful, tiles * p.parts, prepare, [&](Own& own, int64_t i) {
            // The last tile of every sample, the smallest, comes last of all: threads end at about the same time.
            const int64_t others = per_sample - 1, part = i % p.parts, late = i / p.parts - p.batch * others;
            const int64_t n = late < 0 ? i / p.parts / others : late;
            const int64_t k = late < 0 ? i / p.parts % others : others, t = n * per_sample + k;
            const int64_t index[3] = {k / counts[2] / counts[1], k / counts[2] % counts[1], k % counts[2]};
            const auto found = division.boxes(begin, fresh, end, division.tile_at(index, size, at[end].extents));
            Tile<T> tile = {found[0], at[begin].channels, own.values.get(), own.spare.get(), n, part, t};
            if (begin == 0)
                own.convolve(tile);
            else
                fetch(tile, begin);
            for (size_t i = begin; i < end;) {
                size_t next = i;
                while (next < end && (is_position(p.steps[next].op) || p.steps[next].op == TF_CUT)) next++;
                if (next > i)
                    positions(tile, i, next, own.beside.get());
                else
                    step(tile, i, found[++next - begin], i >= fresh, own.moments);
                i = next;
            }
            if (!keep)
                write(p, tile, streams);
            else if (keep != &nowhere)
                save(tile, end, keep);
        });
        for (size_t i = fresh; i < end; i++)
            if (is_stats(p.steps[i].op)) finish(i, per_sample);
    }

    // ---- steps -----------------------------------------------------------------------------

    // One element per channel, laid out by slots; `none` where a slot has no channel.
    std::vector<T> by_slot(const void* operand, const Channels& c, T none) const {
        std::vector<T> line(c.slots, none);
        for (int64_t i = 0; i < c.count && operand; i++)
            load_row(p.operands, operand, i, 1, 1, &line[c.slot(i)]);
        return line;
    }

    // Steps i to end, a block of positions at a time, so that values stay in the first-level cache.
    void positions(Tile<T>& tile, size_t i, size_t end, T* others) {
        const int64_t all = tile.box.positions(), some = std::max<int64_t>(1, BLOCK / tile.channels.slots);
        Tile<T> block = tile;
        for (int64_t p0 = 0; p0 < all; p0 += some) {
            block.values = tile.at(p0);
            block.box = {{0, 0, 0}, {1, 1, std::min(some, all - p0)}};
            for (size_t k = i; k < end; k++) {
                if (p.steps[k].op == TF_SOFTMAX) {
                    channel_softmax(block);
                } else if (p.steps[k].op == TF_MAP) {
                    read_beside(k, tile, p0, block.box.positions(), others);
                    map_positions(k, block, others);
                } else if (p.steps[k].op != TF_CUT) {
                    const Lines<T> l = lines_of(k, tile.n, tile.part);
                    with_element_op(p.steps[k].op, [&](auto op) {
                        each_vector(block, [&](Vec<T> x, int64_t s) {
                            return element_step<decltype(op)::value>(p.steps[k], x, [&](int line) {
                                return load(l.of[line] + s);
                            });
                        });
                    });
                }
            }
        }
    }

    Lines<T> lines_of(size_t i, int64_t sample, int64_t part) const {
        const int op = p.steps[i].op;
        if (op < TF_BATCH_APPLY) {
            const T* line = &lines[i][part * at[i].channels.slots];
            const int64_t all = op == TF_NORM ? p.parts * at[i].channels.slots : 0;
            return {{line, line + all, line + 2 * all}};
        }
        // The last one gathered for this kind of step.
        size_t k = i;
        while (p.steps[--k].op != op - TF_BATCH_APPLY + TF_BATCH_STATS) continue;
        return statistics[k].lines(sample, at[i].channels.slots);
    }

    // The maths of an element step; `line(i)` gives its i-th operand for the lanes of x.
    template <int OP, class F> static Vec<T> element_step(const transfuse_step& s, Vec<T> x, F line) {
        if constexpr (OP == TF_ADD) return x + line(0);
        if constexpr (OP == TF_SCALE) return x * line(0);
        if constexpr (OP == TF_CLAMP) return clamp(x, fill(T(s.f0)), fill(T(s.f1)));
        if constexpr (OP == TF_SIGMOID) return sigmoid<T>(x);
        if constexpr (OP == TF_TANH) return hyperbolic(x);
        if constexpr (OP == TF_EXP_APPLY) return x * line(1);
        if constexpr (OP == TF_MAX_APPLY) return exponential(x - line(0)) * line(1);
        return (x - line(0)) * line(1) + line(2);
    }

    template <class F> static void with_element_op(int op, F f) {
        switch (op) {
            case TF_ADD: return f(std::integral_constant<int, TF_ADD>());
            case TF_SCALE: return f(std::integral_constant<int, TF_SCALE>());
            case TF_CLAMP: return f(std::integral_constant<int, TF_CLAMP>());
            case TF_SIGMOID: return f(std::integral_constant<int, TF_SIGMOID>());
            case TF_TANH: return f(std::integral_constant<int, TF_TANH>());
            case TF_EXP_APPLY: return f(std::integral_constant<int, TF_EXP_APPLY>());
            case TF_MAX_APPLY: return f(std::integral_constant<int, TF_MAX_APPLY>());
            default: return f(std::integral_constant<int, TF_BATCH_APPLY>());
        }
    }

    // Steps that see more than a position.
    void step(Tile<T>& tile, size_t i, const Box& next, bool fresh, std::vector<Moments>& moments) {
        const transfuse_step& s = p.steps[i];
        typedef Vec<T> V;
        const Channels& c = tile.channels;
        const int64_t* extents = at[i].extents;
        switch (s.op) {
            case TF_SUM: return channel_sum(tile);
            case TF_MAX_POOL:
                return pool(tile, s, next, extents, [](V a, V b, int64_t) { return maximum(a, b); });
            case TF_SUM_POOL: {
                pool(tile, s, next, extents, [](V a, V b, int64_t) { return a + b; });
                const T factor = T(s.f0);
                return each_vector(tile, [&](V x, int64_t) { return x * factor; });
            }
            case TF_SIGN_POOL: {
                const T* sign = lines_of(i, tile.n, tile.part).of[0];
                return pool(tile, s, next, extents, [&](V a, V b, int64_t k) {
                    return load(sign + k) < T(0) ? minimum(a, b) : maximum(a, b);
                });
            }
            case TF_BATCH_STATS:
                if (!fresh) return;
                slot_moments(tile, moments);
                return put(statistics[i], tile, moments);
            case TF_GROUP_STATS:
                if (!fresh) return;
                slot_moments(tile, moments);
                return put(statistics[i], tile, by_group(moments, c, s.i0));
            case TF_EXP_STATS: {
                const auto found = sums<true>(tile);
                return fresh ? put(statistics[i], tile, found) : void();
            }
            case TF_MAX_STATS: return fresh ? put(statistics[i], tile, maxima(tile)) : void();
            case TF_GROUP_NORM: {
                Statistic<T> own(1, c.slots);
                slot_moments(tile, moments);
                affine(own, 0, by_group(moments, c, s.i0).data(), s.i0, c, s);
                return apply<TF_GROUP_APPLY>(tile, s, own);
            }
            case TF_SPACE_SOFTMAX: {
                Statistic<T> own(1, c.slots);
                const auto found = maxima(tile);
                for (int64_t k = 0; k < c.slots; k++) {
                    own.shift[k] = T(found[k].mean);
                    own.scale[k] = T(1 / found[k].m2);
                }
                return apply<TF_MAX_APPLY>(tile, s, own);
            }
        }
    }

    template <int OP> void apply(Tile<T>& tile, const transfuse_step& s, const Statistic<T>& own) {
        const Lines<T> l = own.lines(0, tile.channels.slots);
        each_vector(tile, [&](Vec<T> x, int64_t k) {
            return element_step<OP>(s, x, [&](int line) { return load(l.of[line] + k); });
        });
    }

    // ---- the output as the place for values that cross a cut ---------------------------------

    // Whether the rest of the steps from a cut on works on single elements, so that values can wait
    // in the output, in its own type.
    bool fits_output(size_t cut) const {
        for (size_t i = cut + 1; i < size_t(p.steps_count); i++)
            if (!is_element(p.steps[i].op)) return false;
        return p.output_element == COMPUTED<T> && p.output_strides[4] == 1;
    }

    void in_place(size_t begin) {
        const Level& level = at.back();
        const int64_t *st = p.output_strides, *e = level.extents;
        // Rows that follow one another make one.
        int64_t length = e[2], rows = e[1], planes = e[0];
        if (st[3] == length || rows == 1) length *= rows, rows = 1;
        if (rows == 1 && (st[2] == length || planes == 1)) length *= planes, planes = 1;
        const int64_t parts = (length + BLOCK - 1) / BLOCK;
        const int64_t work = p.batch * level.channels.count * planes * rows * parts;
        const Buffer<T> others = allocate<T>(threads * beside);
        const Box whole = {{0, 0, 0}, {e[0], e[1], e[2]}};
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < work; i++) {
            int64_t part = i % parts, row = i / parts % rows, plane = i / parts / rows % planes;
            int64_t c = i / parts / rows / planes % level.channels.count;
            int64_t sample = i / parts / rows / planes / level.channels.count;
            T* v = static_cast<T*>(p.output) + sample * st[0] + c * st[1] + plane * st[2] + row * st[3] +
                   part * BLOCK;
            const int64_t n = std::min(BLOCK, length - part * BLOCK), slot = level.channels.slot(c);
            for (size_t k = begin; k < size_t(p.steps_count); k++) {
                if (p.steps[k].op == TF_MAP) {
                    const Tile<T> tile = {whole, level.channels, nullptr, nullptr, sample, 0, 0};
                    map_row(k, v, n, c, tile, (plane * rows + row) * length + part * BLOCK,
                            others.get() + omp_get_thread_num() * beside);
                    continue;
                }
                const Lines<T> l = lines_of(k, sample, 0);
                with_element_op(p.steps[k].op, [&](auto op) {
                    each_in_row(v, n, [&](Vec<T> x) {
                        return element_step<decltype(op)::value>(p.steps[k], x, [&](int line) {
                            return fill(l.of[line][slot]);
                        });
                    });
                });
            }
        }
    }

    template <class F> static void each_in_row(T* v, int64_t n, F f) {
        int64_t i = 0;
        for (; i + LANES<T> <= n; i += LANES<T>) store(v + i, f(load(v + i)));
        if (i < n) {
            T rest[LANES<T>] = {};
            std::copy(v + i, v + n, rest);
            store(rest, f(load(rest)));
            std::copy(rest, rest + (n - i), v + i);
        }
    }

    // ---- statistics ------------------------------------------------------------------------

    void start(size_t i, int64_t tiles) {
        Statistic<T>& statistic = statistics[i];
        statistic.width = p.steps[i].op == TF_GROUP_STATS ? p.steps[i].i0 : at[i].channels.slots;
        statistic.moments = allocate<Moments>(tiles * statistic.width);  // every tile puts its own
    }

    // Merge the partials in the order of the tiles.
    void finish(size_t i, int64_t per_sample) {
        const transfuse_step& s = p.steps[i];
        Statistic<T>& statistic = statistics[i];
        const Channels& c = at[i].channels;
        const bool whole = s.op == TF_BATCH_STATS;
        const int64_t sets = whole ? 1 : p.batch, each = whole ? p.batch * per_sample : per_sample;
        statistic.resize(sets, c.slots);
        size_t use = i;
        while (p.steps[use].op != s.op - TF_BATCH_STATS + TF_BATCH_APPLY) use++;
        const bool moments = s.op == TF_BATCH_STATS || s.op == TF_GROUP_STATS;
        std::vector<Moments> merged(sets * statistic.width);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < sets * statistic.width; i++) {
            const Moments* part = statistic.moments.get() + i / statistic.width * each * statistic.width;
            for (int64_t t = 0; t < each; t++, part += statistic.width) {
                const Moments& next = part[i % statistic.width];
                moments ? merged[i].merge(next) : merge_sums(merged[i], next);
            }
        }
        for (int64_t set = 0; set < sets; set++) {
            const Moments* of = &merged[set * statistic.width];
            if (moments) {
                affine(statistic, set * c.slots, of, statistic.width, c, p.steps[use]);
                continue;
            }
            for (int64_t k = 0; k < c.slots; k++) {
                statistic.shift[set * c.slots + k] = s.op == TF_MAX_STATS ? T(of[k].mean) : T(0);
                statistic.scale[set * c.slots + k] = T(1 / of[k].m2);
            }
        }
        if (s.op == TF_BATCH_STATS && s.moments)
            for (int64_t k = 0; k < c.count; k++) {
                const Moments& of = merged[c.slot(k)];
                s.moments[k] = of.mean;
                s.moments[c.count + k] = of.m2 / of.n;
            }
        statistic.moments.reset();
    }

    // (x - mean) * (1 / sqrt(var + eps) * weight) + bias, from moments of slots or of groups.
    void affine(Statistic<T>& to, int64_t offset, const Moments* moments, int64_t count, const Channels& c,
                const transfuse_step& s) const {
        const auto weight = s.t0 ? by_slot(s.t0, c, 1) : std::vector<T>(c.slots, T(1));
        const auto bias = by_slot(s.t1, c, 0);
        const bool grouped = s.op != TF_BATCH_APPLY;
        for (int64_t i = 0; i < c.count; i++) {
            const int64_t slot = c.slot(i);
            const Moments& m = moments[grouped ? i / (c.count / count) : slot];
            to.shift[offset + slot] = T(m.mean);
            to.scale[offset + slot] = T(double(weight[slot]) / std::sqrt(m.m2 / m.n + s.f0));
            to.offset[offset + slot] = bias[slot];
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

// Calls f with a zero of the type that a program computes in.
template <class F> static auto as_computed(const transfuse_program& p, F f) {
    return p.element == TF_F64 ? f(double()) : f(float());
}

static void run(const transfuse_program& program, int threads, double* seconds) {
    as_computed(program, [&](auto type) {
        typedef decltype(type) T;
        const Sideways<T> sideways(program);
        Engine<T>(flattened(sideways.program), sideways.turned, threads, seconds).run();
    });
}

// Weights for samples side by side may lie in another order: one element more tells them from others.
static int64_t packed_bytes(const transfuse_program& program) {
    return as_computed(program, [&](auto type) {
        typedef decltype(type) T;
        const Sideways<T> sideways(program);
        return (packed_size<T>(sideways.program) + sideways.turned) * int64_t(sizeof(T));
    });
}

static void pack_weights(const transfuse_program& program, const void* weights, const int64_t* strides, void* to) {
    as_computed(program, [&](auto type) {
        typedef decltype(type) T;
        const Sideways<T> sideways(program);
        int64_t steps[5];
        std::copy(strides, strides + 5, steps);
        if (sideways.turned) Sideways<T>::turn_weights(steps);
        pack(sideways.program, weights, steps, static_cast<T*>(to));
    });
}

void sweep(const transfuse_sweep& s, int threads);  // sweeps.cpp
void winners(const transfuse_winners& w, int threads);  // winners.cpp

extern const transfuse_engine ENGINE;
const transfuse_engine ENGINE = {run, packed_bytes, pack_weights, digest, sweep, winners};

}  // namespace TF_NAMESPACE

// The shapes between steps, and tiles that depend on them alone.
#pragma once
#include <algorithm>
#include <vector>

#include "convolution.h"
#include "tile.h"

namespace TF_NAMESPACE {

constexpr int64_t TILE_BYTES = 224 * 1024;  // a tile's values, beside its inputs in the second-level cache
constexpr int64_t LARGEST_BYTES = 2 << 20;   // of a tile, however wide the stride
constexpr int64_t HEAVY_BYTES = 512 * 1024;  // weights beyond the second-level cache
constexpr int64_t FEWEST_TILES = 48;        // so that many threads find work; never by their number
constexpr int64_t FEWEST_MET = 128;         // positions of a tile for every weight, where tiles are halved
constexpr int64_t ENOUGH_TILES = 24;        // fewer, and channels are cut into parts
constexpr int64_t FEWEST_SAMPLES = 2 * TF_ROWS;  // of a tile, side by side
constexpr double LITTLE = 1 << 17;          // products of a sample: computed in less than it takes to divide them
constexpr double MET_AGAIN = 1.2;           // inputs of all tiles, where each computes with its own
constexpr int64_t COPY_BYTES = 800 * 1024;  // of inputs, where the parts of a tile's channels share them

// The shape of the values before a step.
struct Level {
    int64_t extents[3];
    Channels channels;
};

static bool is_window(int op) { return op == TF_MAX_POOL || op == TF_SUM_POOL || op == TF_SIGN_POOL; }
static bool is_stats(int op) { return op >= TF_BATCH_STATS && op <= TF_MAX_STATS; }
static bool is_resident(int op) { return op == TF_GROUP_NORM || op == TF_SPACE_SOFTMAX; }

// Steps that see one position at a time, and those of them that see one element.
static bool is_element(int op) {
    return op <= TF_MAP || (op >= TF_BATCH_APPLY && op <= TF_MAX_APPLY);
}
static bool is_position(int op) { return is_element(op) || op == TF_SOFTMAX; }

template <class T> class Division {
  public:
    // Output channels in parts, where tiles alone would leave threads without work: few positions, many
    // weights. Not where a step needs all channels of a position, or a statistic.
    static Layer parts(const transfuse_program& program, bool sideways, const int64_t* inputs) {
        const Layer whole = Layer::whole<T>(program, sideways);
        bool separable = program.groups == 1 && !is_narrow<T>(program) && !whole.columns;
        for (int i = 0; i < program.steps_count; i++)
            separable = separable && (program.steps[i].op <= TF_MAP || is_window(program.steps[i].op));
        Layer found = whole;
        if (separable && Division(whole, inputs).is_little(0)) return found;
        int64_t most = 0;
        // Smaller tiles where a cache holds the weights that each reads; else only where parts of two vectors do not do.
        const bool light = Division(whole, inputs).weight_bytes() <= PART_BYTES;
        for (bool small : {light, !light})
            for (int64_t into = 1; separable && into * 2 * LANES<T> <= program.out_channels; into++) {
                if (into > 1 && program.out_channels % (into * 2 * LANES<T>)) continue;
                const Layer layer = whole.cut(into, small ? (ENOUGH_TILES + into - 1) / into : 1);
                const int64_t tiles = Division(layer, inputs).tiles();
                if (tiles > most) found = layer, most = tiles;
                if (most >= ENOUGH_TILES) return found;
            }
        return found;
    }

    std::vector<Level> at;  // before each step, and after the last

    Division(const Layer& layer, const int64_t* inputs) : p(layer), inputs{inputs[0], inputs[1], inputs[2]} {
        Level level;
        for (int a = 0; a < 3; a++)
            level.extents[a] = (inputs[a] - 1) * p.stride[a] - 2 * p.padding[a] +
                               p.dilation[a] * (p.kernel[a] - 1) + p.output_padding[a] + 1;
        level.channels = conv_channels<T>(p);
        for (int i = 0; i < p.steps_count; i++) {
            at.push_back(level);
            if (is_window(p.steps[i].op))
                for (int a = 0; a < 3; a++) level.extents[a] = windows(level.extents[a], p.steps[i], a);
            if (p.steps[i].op == TF_SUM) level.channels = {1, 1, LANES<T>, LANES<T>};
        }
        at.push_back(level);
    }

    // How many there are of all steps at once.
    int64_t tiles() const {
        int64_t size[3], count = p.batch * p.parts;
        divide(0, 0, size_t(p.steps_count), size);
        for (int a = 0; a < 3; a++) count *= (at.back().extents[a] + size[a] - 1) / size[a];
        return count;
    }

    // A division into tiles that depends on the sizes alone.
    void divide(size_t begin, size_t fresh, size_t end, int64_t* size) const {
        const int64_t* extents = at[end].extents;
        for (int a = 0; a < 3; a++) size[a] = extents[a];
        if (is_little(begin)) return;
        for (size_t i = begin; i < end; i++)
            if (is_resident(p.steps[i].op)) return;
        // Every tile reads all weights: many of them want many positions to meet, and few tiles.
        const int64_t weights = begin == 0 ? weight_bytes() : 0;
        const bool heavy = weights > HEAVY_BYTES;
        const int64_t few = FEWEST_TILES / (weights > 8 * HEAVY_BYTES ? 8 : 1);
        const int64_t fewest = p.parts > 1 ? p.fewest : few;
        const int64_t smallest = heavy ? TILE_BYTES : TILE_BYTES / 8;
        const int64_t rows = std::min(rows_of_pairs(begin, fresh, end), extents[1]);
        // A block of the microkernel in every phase, however wide the stride: else weights are read for little.
        const int64_t position = at[0].channels.slots * int64_t(sizeof(T));
        const int64_t blocks = LARGEST_BYTES / (TF_ROWS * position);  // as many phases as there may be
        const int64_t block = p.stride[2] > blocks ? LARGEST_BYTES : TF_ROWS * p.stride[2] * position;
        const int64_t largest = std::max(block, heavy ? 4 * TILE_BYTES : TILE_BYTES);
        for (int64_t limit = largest;; limit /= 2) {
            const int64_t larger[3] = {size[0], size[1], size[2]};
            size[0] = 1;
            size[1] = rows;
            size[2] = std::min(extents[2], FEWEST_SAMPLES);
            // Of samples side by side a tile takes few, and as many of their positions as it can: these lie together.
            if (p.sideways) grow(begin, fresh, end, limit, rows, size);
            if (!p.sideways || (size[0] == extents[0] && size[1] == extents[1]))
                for (int64_t parts = 1; parts <= extents[2]; parts++) {
                    size[2] = (extents[2] + parts - 1) / parts;
                    if (fits(begin, fresh, end, size, limit)) break;
                }
            grow(begin, fresh, end, limit, rows, size);
            int64_t tiles = p.batch;
            for (int a = 0; a < 3; a++) {
                const int64_t count = (extents[a] + size[a] - 1) / size[a], by = a == 1 ? rows : 1;
                size[a] = ((extents[a] + count - 1) / count + by - 1) / by * by;  // none much smaller
                tiles *= count;
            }
            if (p.columns && limit < largest && overlaps(begin, fresh, end, size)) return (void)std::copy(larger, larger + 3, size);
            if (tiles >= fewest || limit / 2 < std::max(block, smallest)) return;
        }
    }

    // Whether tiles of this size meet inputs that others meet, too, so often that computing with them again would tell.
    bool overlaps(size_t begin, size_t fresh, size_t end, const int64_t* size) const {
        double met_again = 1;
        for (int a = 0; a < 3; a++) {
            const int64_t count = ceiling(at[end].extents[a], size[a]);
            const int64_t some = std::min(inputs[a], met(a, first_length(a, begin, fresh, end, size)));
            met_again *= double(count * some) / double(inputs[a]);
        }
        return met_again > MET_AGAIN;
    }

    // Whether `samples` of them are too little work to be divided, or shared between threads.
    bool is_little(size_t begin, int64_t samples = 1) const {
        double work = double(samples) * double(at[begin].channels.slots);
        for (int a = 0; a < 3; a++) {
            work *= double(at[begin].extents[a]);
            if (begin == 0) work *= double((p.kernel[a] + p.stride[a] - 1) / p.stride[a]);
        }
        return (begin == 0 ? work * double(p.in_channels / p.groups) : work) <= LITTLE;
    }

    // Half the rows where weights are heavy and tiles few, so that many threads find work and wait less for
    // the last one: if every weight still meets so many positions that reading it again costs nothing.
    void halve(size_t begin, size_t fresh, size_t end, int64_t* size) const {
        const int64_t weights = weight_bytes();
        if (begin > 0 || p.parts > 1 || weights <= HEAVY_BYTES || weights > 8 * HEAVY_BYTES) return;
        for (size_t i = begin; i < end; i++)
            if (is_resident(p.steps[i].op)) return;
        int64_t tiles = p.batch;
        for (int a = 0; a < 3; a++) tiles *= (at[end].extents[a] + size[a] - 1) / size[a];
        const int64_t rows = std::min(rows_of_pairs(begin, fresh, end), at[end].extents[1]);
        const int64_t half[3] = {size[0], (size[1] / rows + 1) / 2 * rows, size[2]};
        const int64_t positions = values(begin, fresh, end, half) / at[0].channels.slots;
        const bool enough = by_phase(p, positions) >= FEWEST_MET;
        if (tiles < 2 * FEWEST_TILES && enough) size[1] = half[1];
    }

    static Box tile_at(const int64_t* index, const int64_t* size, const int64_t* extents) {
        Box tile;
        for (int a = 0; a < 3; a++) {
            tile.lo[a] = index[a] * size[a];
            tile.hi[a] = std::min(tile.lo[a] + size[a], extents[a]);
        }
        return tile;
    }

    // The boxes a tile has before each step from `begin` to `end`, last one the tile itself; steps
    // from `fresh` on gather.
    std::vector<Box> boxes(size_t begin, size_t fresh, size_t end, const Box& tile) const {
        std::vector<Box> found(end - begin + 1);
        for (int a = 0; a < 3; a++)
            along(a, begin, fresh, end, tile.lo[a], tile.hi[a], [&](size_t i, int64_t lo, int64_t hi) {
                found[i - begin].lo[a] = lo, found[i - begin].hi[a] = hi;
            });
        return found;
    }

    // Values that every tile of a division has room in.
    int64_t room(size_t begin, size_t fresh, size_t end, const int64_t* size) const {
        return values(begin, fresh, end, size, [](int64_t tiles, auto tile) {
            for (int64_t i = 0; i < tiles; i++) tile(i);
        });
    }

  private:
    const Layer& p;
    const int64_t inputs[3];  // along each axis

    int64_t weight_bytes() const {
        if (p.columns) return in_vectors<T>(column_lanes(p)) * p.in_channels * int64_t(sizeof(T));
        const int64_t channels = is_narrow<T>(p) ? p.out_channels : at[0].channels.slots;
        return channels * p.taps() * (p.in_channels / p.groups) * int64_t(sizeof(T));
    }

    // Whether a tile stays in the second-level cache, and where its inputs are read for several parts of
    // the channels, they too.
    bool fits(size_t begin, size_t fresh, size_t end, const int64_t* size, int64_t limit) const {
        if (values(begin, fresh, end, size) * int64_t(sizeof(T)) > limit) return false;
        if (p.parts == 1 || size[2] <= TF_ROWS * p.stride[2]) return true;
        int64_t bytes = p.in_channels * int64_t(sizeof(T));
        for (int a = 0; a < 3; a++)
            if (__builtin_mul_overflow(bytes, met(a, first_length(a, begin, fresh, end, size)), &bytes)) return false;
        return bytes <= COPY_BYTES;
    }

    // Inputs along an axis that so many outputs read, at the most.
    int64_t met(int axis, int64_t outputs) const {
        return (outputs + p.dilation[axis] * (p.kernel[axis] - 1) - 1) / p.stride[axis] + 1;
    }

    // f(i, lo, hi) for what a tile that spans lo to hi along an axis holds there before step i, the last first.
    template <class F>
    void along(int a, size_t begin, size_t fresh, size_t end, int64_t lo, int64_t hi, F f) const {
        int64_t first = lo, last = hi;  // the tile's share of all positions: shares meet without gap or overlap
        f(end, lo, hi);
        for (size_t i = end; i-- > begin;) {
            const transfuse_step& s = p.steps[i];
            if (is_window(s.op)) {
                lo = std::max<int64_t>(0, lo * s.stride[a] - s.padding[a]);
                hi = std::min(at[i].extents[a], (hi - 1) * s.stride[a] - s.padding[a] + s.kernel[a]);
                first *= s.stride[a];
                last = last == at[i + 1].extents[a] ? at[i].extents[a] : last * s.stride[a];
            }
            // A statistic covers what later windows leave out, too.
            if ((is_stats(s.op) && i >= fresh) || is_resident(s.op)) lo = first, hi = last;
            f(i, lo, hi);
        }
    }

    // What the first tile holds along an axis before step `begin`.
    int64_t first_length(int a, size_t begin, size_t fresh, size_t end, const int64_t* size) const {
        int64_t found = 0;
        along(a, begin, fresh, end, 0, std::min(size[a], at[end].extents[a]), [&](size_t, int64_t lo, int64_t hi) {
            found = hi - lo;  // the last one stays
        });
        return found;
    }

    // Values of the largest box that any tile has before any step. Axes are independent, so the longest along each one
    // tells; `each(tiles, f)` calls f with those of an axis that are to be looked at.
    template <class F> int64_t values(size_t begin, size_t fresh, size_t end, const int64_t* size, F each) const {
        const size_t levels = end - begin + 1;
        std::vector<int64_t> both(2 * levels, 1);
        int64_t *positions = both.data(), *longest = positions + levels;
        for (int a = 0; a < 3; a++) {
            const int64_t all = at[end].extents[a];
            std::fill(longest, longest + levels, 0);
            each(ceiling(all, size[a]), [&](int64_t index) {
                const int64_t lo = index * size[a], hi = std::min(lo + size[a], all);
                along(a, begin, fresh, end, lo, hi, [&](size_t i, int64_t from, int64_t to) {
                    longest[i - begin] = std::max(longest[i - begin], to - from);
                });
            });
            for (size_t i = 0; i < levels; i++) positions[i] *= longest[i];
        }
        int64_t most = 0;
        for (size_t i = 0; i < levels; i++) most = std::max(most, positions[i] * at[begin + i].channels.slots);
        return most;
    }

    // About the same: the first, second and last along each axis tell.
    int64_t values(size_t begin, size_t fresh, size_t end, const int64_t* size) const {
        return values(begin, fresh, end, size, [](int64_t tiles, auto tile) {
            tile(0);
            if (tiles > 1) tile(1);
            if (tiles > 2) tile(tiles - 1);
        });
    }

    // Rows that a tile grows by: those of whole pairs in every phase of the convolution.
    int64_t rows_of_pairs(size_t begin, size_t fresh, size_t end) const {
        if (begin > 0 || !p.paired) return 1;
        const int64_t both = 2 * outputs_apart(p);
        for (int64_t rows = 1; rows <= both; rows++) {
            const int64_t index[3] = {0, 1, 0}, size[3] = {1, rows, 1};
            if (2 * rows > at[end].extents[1]) break;
            const Box box = boxes(begin, fresh, end, tile_at(index, size, at[end].extents))[0];
            if (box.size(1) % both == 0) return rows;
        }
        return 1;
    }

    // Makes tiles larger while they fit: along the axis where inputs that neighbours read too weigh most. Planes
    // of the same rows are read once for all tiles where each reads most of them.
    void grow(size_t begin, size_t fresh, size_t end, int64_t limit, int64_t rows, int64_t* size) const {
        const int64_t *extents = at[end].extents, by[2] = {1, rows};
        bool done[2] = {false, false};
        while (!done[0] || !done[1]) {
            double shared[2];
            for (int a : {0, 1})
                shared[a] = double(p.dilation[a] * (p.kernel[a] - 1)) / double(first_length(a, begin, fresh, end, size));
            if (begin == 0 && 2 * met(0, first_length(0, begin, fresh, end, size)) > inputs[0]) shared[0] = 0;
            const int a = done[0] || (!done[1] && shared[1] >= shared[0]) ? 1 : 0;
            int64_t trial[3] = {size[0], size[1], size[2]};
            trial[a] = std::min(size[a] + by[a], extents[a]);
            done[a] = trial[a] == size[a] || !fits(begin, fresh, end, trial, limit);
            if (!done[a]) size[a] = trial[a];
        }
    }
};

}  // namespace TF_NAMESPACE

// Weights in the order in which the microkernel reads them.
#pragma once
#include <algorithm>
#include <atomic>
#include <vector>

#include "block.h"
#include "columns.h"
#include "convert.h"
#include "dots.h"
#include "memory.h"
#include "narrow.h"
#include "pairs.h"
#include "parallel.h"
#include "tile.h"

namespace TF_NAMESPACE {

constexpr int64_t FEW_BYTES = 1 << 18;     // of weights: packed by one thread while others would wake up
constexpr int64_t MANY_BYTES = 16 << 20;   // of weights: beyond the last cache
// Of the products: copies and sums of input rows take the rest, less where several taps of the other axes share them.
constexpr double MOST_IN_PAIRS = 0.82, MOST_SHARED = 0.85;

// Groups of so few output channels that half a vector holds them. Half of a vector of 64 bytes is a register with as
// many products a second for itself; shorter ones are not.
template <class T> static bool is_half(int64_t per_group) { return TF_BYTES == 64 && 2 * per_group <= LANES<T>; }

// Channels of the microkernel's block that begins with channel o of a group: two vectors, one where no
// more are left, or half of one.
template <class T> static int64_t block_width(int64_t per_group, int64_t o) {
    if (is_half<T>(per_group)) return LANES<T> / 2;
    return per_group - o > LANES<T> ? 2 * LANES<T> : LANES<T>;
}

// Groups of one input and one output channel, and so many that vectors hold channels, each of another group.
template <class T> static bool is_depthwise(const transfuse_program& p) {
    return p.in_channels == p.groups && p.out_channels == p.groups && 2 * p.groups >= LANES<T>;
}

// Groups of so few output channels that vectors of them are no use, but those of groups, or of positions (images).
template <class T> static bool is_narrow(const transfuse_program& p) {
    const int64_t per_group = p.out_channels / p.groups;
    return is_depthwise<T>(p) || (per_group <= NARROW && per_group * 4 <= LANES<T>);
}

// A count of a convolution's taps or outputs, divided among its phases. Axis by axis: the phases of all axes
// together may be more than 64 bits hold.
static inline int64_t by_phase(const transfuse_program& p, int64_t count) {
    return count / p.stride[0] / p.stride[1] / p.stride[2];
}

// So many channels in whole vectors, or half of one.
template <class T> static int64_t in_vectors(int64_t channels) {
    const int64_t some = is_half<T>(channels) ? LANES<T> / 2 : LANES<T>;
    return ceiling(channels, some) * some;
}
template <class T> static int64_t group_slots(const transfuse_program& p) { return in_vectors<T>(p.out_channels / p.groups); }

template <class T> static Channels conv_channels(const transfuse_program& p) {
    int64_t per_group = p.out_channels / p.groups;
    if (is_narrow<T>(p)) {  // channels of all groups side by side
        int64_t slots = (p.out_channels + LANES<T> - 1) / LANES<T> * LANES<T>;
        return {p.out_channels, p.out_channels, slots, slots};
    }
    const int64_t padded = group_slots<T>(p), slots = (padded * p.groups + LANES<T> - 1) / LANES<T> * LANES<T>;
    if (padded == per_group) return {p.out_channels, p.out_channels, slots, slots};
    return {p.out_channels, per_group, padded, slots};
}

// Whether input channels are taken two by two.
template <class T> static bool is_dotted(const transfuse_program& p) {
    return sizeof(T) == 4 && are_dotted(p) && !is_narrow<T>(p);
}

// The share of time that is left where two rows of outputs are computed at once; 1 where they are not: where that leaves
// out too few products, where no output channels share the sums of input rows, or where their rounding is not small beside
// a long sum's. Sums of weights are more to read: where few positions meet many weights, reading is what takes the time.
template <class T> static double left_in_pairs(const transfuse_program& p) {
    const int64_t cig = p.in_channels / p.groups, cog = p.out_channels / p.groups;
    const int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    const bool reads = cig * p.out_channels * taps * int64_t(sizeof(T)) > MANY_BYTES &&
                       p.spatial[0] * p.spatial[1] * p.spatial[2] < 256;
    // Taps of a phase along the other axes.
    const int64_t others = std::max<int64_t>(1, p.kernel[0] / p.stride[0] * (p.kernel[2] / p.stride[2]));
    const bool shared = cog >= 5, summed = cig >= 32 || cig * others >= 64;
    if (is_narrow<T>(p) || p.kernel[1] <= Taps(p, 1).step || !shared || !summed || reads || is_dotted<T>(p)) return 1;
    const bool several = p.kernel[0] > p.stride[0] || p.kernel[2] > p.stride[2];
    return std::min(1.0, share_in_pairs(p) / (several ? MOST_SHARED : MOST_IN_PAIRS));
}

// How weights are packed, found once for a call: [group][block of channels][tap][input channel][channel in block], zeros
// where a block has no channel. Narrow groups are one block, without zeros; where groups are channels, [tap][channel].
// Where rows are paired, sums of taps follow the taps of each plane, and behind everything stands 1 if they may be used;
// where channels are taken two by two, so are lines.
template <class T> struct Packing {
    bool columns, paired;
    int64_t rows;  // of taps: the kernel's, and sums of them
    int64_t size;

    explicit Packing(const transfuse_program& p) {
        const bool dotted = is_dotted<T>(p);
        const double left = left_in_pairs<T>(p);
        columns = !dotted && pays_by_columns<T>(p, is_narrow<T>(p), left);
        paired = left < 1 && !columns;
        rows = p.kernel[1] + (paired ? int64_t(Pairs(p).mixed.size()) : 0);
        const int64_t taps = p.kernel[0] * rows * p.kernel[2], lines = taps * (p.in_channels / p.groups) / (dotted ? 2 : 1);
        // Elements more tell some from the same weights in another order.
        if (columns) size = in_vectors<T>(column_lanes(p)) * p.in_channels + 3;
        else if (is_depthwise<T>(p)) size = conv_channels<T>(p).slots * taps;
        else if (is_narrow<T>(p)) size = p.out_channels * lines;
        else size = group_slots<T>(p) * p.groups * lines + paired;
    }
};

// A program whose output channels are cut into equal parts, each computed by itself: `out_channels` and
// the shapes that follow from it are a part's, every address the whole's.
struct Layer : transfuse_program {
    int64_t parts = 1;
    int64_t fewest = 1;    // tiles, where there are parts
    int64_t tap_rows = 0;  // of the packed weights
    bool paired = false;   // whether rows are, and the weights allow it
    bool sideways = false; // whether the width is that of samples side by side
    bool dots = false;     // whether a channel of the input stands for two
    bool columns = false;  // whether inputs are multiplied with all taps at once

    template <class T> static Layer whole(const transfuse_program& p, bool sideways) {
        Layer layer;
        static_cast<transfuse_program&>(layer) = p;
        layer.sideways = sideways;
        const Packing<T> packed(p);
        const T* weights = static_cast<const T*>(p.weights);
        // Before there are weights they are taken to be such that they may be.
        layer.paired = packed.paired && !p.careful && (!weights || weights[packed.size - 1] != 0);
        layer.tap_rows = packed.rows;
        layer.columns = packed.columns;
        layer.dots = is_dotted<T>(p);
        if (layer.dots) layer.in_channels /= 2;
        return layer;
    }
    Layer cut(int64_t into, int64_t fewest) const {
        Layer layer = *this;
        layer.parts = into;
        layer.fewest = fewest;
        layer.out_channels = out_channels / into;
        return layer;
    }
    int64_t taps() const { return kernel[0] * tap_rows * kernel[2]; }
};

// How the channels of a tile lie. Those of narrow groups have no room between positions where the output has none, and
// nothing works on them by vectors: a bias is part of their sums.
template <class T> static Channels tile_channels(const Layer& p) {
    const bool plain = !p.steps_count || (p.steps_count == 1 && p.steps[0].op == TF_ADD);
    if (!plain || p.output_strides[1] != 1 || !is_narrow<T>(p) || is_depthwise<T>(p) || p.columns) return conv_channels<T>(p);
    return {p.out_channels, p.out_channels, p.out_channels, p.out_channels};
}

template <class T>
static void pack_lanes(const transfuse_program& p, const void* weights, const int64_t* strides, T* to) {
    const int64_t slots = conv_channels<T>(p).slots;
    for (int64_t a = 0; a < p.kernel[0]; a++)
        for (int64_t b = 0; b < p.kernel[1]; b++)
            for (int64_t e = 0; e < p.kernel[2]; e++, to += slots) {
                load_row(p.element, weights, a * strides[2] + b * strides[3] + e * strides[4], strides[0], p.groups, to);
                for (int64_t c = 0; c < p.groups; c++) to[c] *= T(p.weight_scale);
                std::fill(to + p.groups, to + slots, T(0));
            }
}

template <class T>
static void pack(const transfuse_program& p, const void* weights, const int64_t* strides, int threads, T* to);

// Packed as float first.
template <class T>
static void pack_dots(const transfuse_program& p, const void* weights, const int64_t* strides, int threads, T* to) {
    transfuse_program single = p;
    single.input_element = TF_F32;
    single.spatial[1] = 1, single.spatial[2] = COLUMNS_BYTES;  // so few rows are not paired, so long ones no columns
    const int64_t lines = p.kernel[0] * p.kernel[1] * p.kernel[2] * (p.in_channels / p.groups);
    const int64_t per_group = p.out_channels / p.groups, padded = group_slots<T>(p);
    const Buffer<T> found = allocate<T>(Packing<T>(single).size);
    pack(single, weights, strides, threads, found.get());
    const T* from = found.get();
    for (int64_t g = 0; g < p.groups; g++)
        for (int64_t o = 0, block; o < padded; o += block) {
            block = block_width<T>(per_group, o);
            if constexpr (sizeof(T) == 4) join_lines(from, lines, block, to);
            from += lines * block, to += lines / 2 * block;
        }
}

// Whether rows may be paired: every value is far from overflowing, and none is NaN.
template <class T> static bool is_tame(const T* values, int64_t count) {
    T most = 0;
    bool number = true;
    for (int64_t i = 0; i < count; i++) {
        const T size = std::abs(values[i]);
        number &= size == size;
        most = most > size ? most : size;
    }
    return number && most < T(TAME);
}

template <class T>
static void pack(const transfuse_program& p, const void* weights, const int64_t* strides, int threads, T* to) {
    if (is_depthwise<T>(p)) return pack_lanes(p, weights, strides, to);
    if (is_dotted<T>(p)) return pack_dots(p, weights, strides, threads, to);
    const Packing<T> packed(p);
    if (packed.columns) return pack_columns(p, weights, strides, [&](int64_t o) { return block_width<T>(column_lanes(p), o); }, to);
    const int64_t cig = p.in_channels / p.groups, cog = p.out_channels / p.groups;
    const bool narrow = is_narrow<T>(p), paired = packed.paired;
    const int64_t padded = narrow ? cog : group_slots<T>(p);
    const auto mixed = paired ? Pairs(p).mixed : std::vector<MixedWeights>();
    const int64_t width = p.kernel[2], taps = p.kernel[1] * width, all = taps + int64_t(mixed.size()) * width;
    const bool together = strides[4] == 1 && strides[3] == width;
    const int64_t widest = narrow ? cog : block_width<T>(cog, 0);  // the first block, of all
    const int64_t blocks = (padded + widest - 1) / widest, size = packed.size * int64_t(sizeof(T));
    std::atomic<bool> tame{true};
    expect_writes(to, size_t(size));
    const auto prepare = [&] { return std::vector<T>(size_t(taps * widest)); };  // of an input channel: [tap][channel]
    in_parallel(size > FEW_BYTES ? threads : 1, p.groups * blocks, prepare, [&](std::vector<T>& plane, int64_t item) {
        const int64_t g = item / blocks, o = item % blocks * widest, block = narrow ? cog : block_width<T>(cog, o);
        const int64_t some = std::min(block, cog - o), next = cig * block;  // from one tap to the next
        T* first = to + (g * padded + o) * p.kernel[0] * all * cig;
        std::fill(plane.begin(), plane.end(), T(0));
        for (int64_t i = 0; i < cig; i++)
            for (int64_t a = 0; a < p.kernel[0]; a++) {
                const int64_t at = (g * cig + i) * strides[0] + o * strides[1] + a * strides[2];
                T *read = plane.data(), *line = first + a * all * next + i * block;
                if (together) copy_block(p.element, weights, at, {taps, some}, {1, strides[1]}, read, block);
                for (int64_t t = 0; t < taps && !together; t++)
                    load_row(p.element, weights, at + t / width * strides[3] + t % width * strides[4], strides[1], some,
                             read + t * block);
                for (int64_t k = 0; p.weight_scale != 1 && k < taps * block; k++) read[k] *= T(p.weight_scale);
                if (paired && tame && !is_tame(read, taps * block)) tame = false;
                for (int64_t t = 0; t < taps; t++, line += next) std::copy(read + t * block, read + (t + 1) * block, line);
                for (const MixedWeights& mix : mixed)
                    for (int64_t e = 0; e < width; e++, line += next)
                        mix([&](int64_t tap) { return read + (tap * width + e) * block; }, block, line);
            }
    });
    if (paired) to[packed.size - 1] = tame;
}

}  // namespace TF_NAMESPACE

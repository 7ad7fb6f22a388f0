// The transposed convolution of a box of outputs, from a zero-padded copy of the inputs it reads.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "convert.h"
#include "microkernel.h"
#include "tile.h"

namespace TF_NAMESPACE {

constexpr int NARROW = 4;
constexpr int64_t TERMS = 64;  // in a sum before it joins the others
constexpr int64_t L1_BYTES = 24 * 1024;  // of weights, beside the inputs they meet

// Fresh memory of many pages: let the kernel hand it out in large ones, 512 times fewer faults.
static inline void expect_writes(void* p, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 2 << 20, first = (uintptr_t(p) + page - 1) & ~(page - 1);
    const uintptr_t last = (uintptr_t(p) + bytes) & ~(page - 1);
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

template <class T> struct Free {
    void operator()(T* p) const { std::free(p); }
};
template <class T> using Buffer = std::unique_ptr<T[], Free<T>>;
template <class T> static Buffer<T> allocate(int64_t count) {
    size_t bytes = (size_t(count) * sizeof(T) + TF_BYTES + 1023) / 1024 * 1024;
    void* p = std::aligned_alloc(64, bytes);
    if (!p) throw std::bad_alloc();
    expect_writes(p, bytes);
    return Buffer<T>(static_cast<T*>(p));
}

// Channels of one block of the microkernel: two vectors, one where a group has no more.
template <class T> static int vectors(int64_t per_group) { return per_group > LANES<T> ? 2 : 1; }

// Groups of so few output channels (depthwise, images) that vectors of positions serve better.
template <class T> static bool is_narrow(const transfuse_program& p) {
    return p.out_channels / p.groups <= NARROW && p.out_channels / p.groups * 4 <= LANES<T>;
}

template <class T> static Channels conv_channels(const transfuse_program& p) {
    int64_t per_group = p.out_channels / p.groups;
    int64_t block = vectors<T>(per_group) * LANES<T>;
    if (is_narrow<T>(p)) {  // channels of all groups side by side
        int64_t slots = (p.out_channels + LANES<T> - 1) / LANES<T> * LANES<T>;
        return {p.out_channels, p.out_channels, slots, slots};
    }
    int64_t padded = (per_group + block - 1) / block * block;
    return {p.out_channels, per_group, padded, padded * p.groups};
}

// Packed weights: [group][block of channels][tap][input channel][channel in block], zeros where a
// block has no channel. Narrow groups are one block, without zeros.
template <class T> static int64_t packed_size(const transfuse_program& p) {
    int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    Channels c = conv_channels<T>(p);
    if (is_narrow<T>(p)) return p.in_channels / p.groups * p.out_channels * taps;
    return c.slots * taps * (p.in_channels / p.groups);
}

template <class T>
static void pack(const transfuse_program& p, const void* weights, const int64_t* strides, T* to) {
    const int64_t taps[3] = {p.kernel[0], p.kernel[1], p.kernel[2]};
    const int64_t cig = p.in_channels / p.groups, cog = p.out_channels / p.groups;
    const Channels c = conv_channels<T>(p);
    const bool narrow = is_narrow<T>(p);
    const int64_t block = narrow ? cog : vectors<T>(cog) * LANES<T>;
    const int64_t padded = narrow ? cog : c.padded;
    for (int64_t g = 0; g < p.groups; g++)
        for (int64_t o = 0; o < padded; o += block)
            for (int64_t a = 0; a < taps[0]; a++)
                for (int64_t b = 0; b < taps[1]; b++)
                    for (int64_t e = 0; e < taps[2]; e++)
                        for (int64_t i = 0; i < cig; i++)
                            for (int64_t j = 0; j < block; j++) {
                                T value = 0;
                                if (o + j < cog) {
                                    int64_t at = (g * cig + i) * strides[0] + (o + j) * strides[1] +
                                                 a * strides[2] + b * strides[3] + e * strides[4];
                                    load_row(p.element, weights, at, 1, 1, &value);
                                }
                                *to++ = value * T(p.weight_scale);
                            }
}

// What outputs lo <= o < hi of an axis read: for each, its taps and the inputs they meet.
struct Reads {
    struct Meets {
        int64_t tap, input;
    };
    std::vector<std::vector<Meets>> of;  // by output - lo; only inputs that exist
    int64_t lo = INT64_MAX, hi = INT64_MIN;  // inputs met at all

    Reads(const transfuse_program& p, int axis, int64_t inputs, int64_t from, int64_t to) {
        for (int64_t o = from; o < to; o++) {
            of.emplace_back();
            for (int64_t k = 0; k < p.kernel[axis]; k++) {
                int64_t at = o + p.padding[axis] - k * p.dilation[axis];
                if (at < 0 || at % p.stride[axis] || at / p.stride[axis] >= inputs) continue;
                int64_t i = at / p.stride[axis];
                of.back().push_back({k, i});
                lo = std::min(lo, i);
                hi = std::max(hi, i + 1);
            }
        }
        if (lo > hi) lo = hi = 0;
    }
};

// Outputs start, start + stride, … along the width, and where each tap meets the first of them.
struct WidthPhase {
    struct Meets {
        int64_t tap, input;
    };
    int64_t start, count;
    std::vector<Meets> taps;
};

static std::vector<WidthPhase> width_phases(const transfuse_program& p, int64_t inputs, int64_t lo,
                                            int64_t hi) {
    std::vector<WidthPhase> phases;
    for (int64_t o = lo; o < std::min(lo + p.stride[2], hi); o++) {
        WidthPhase phase = {o, (hi - o + p.stride[2] - 1) / p.stride[2], {}};
        for (int64_t k = 0; k < p.kernel[2]; k++) {
            int64_t at = o + p.padding[2] - k * p.dilation[2];
            if (((at % p.stride[2]) + p.stride[2]) % p.stride[2]) continue;
            int64_t i = at / p.stride[2];
            if (i + phase.count > 0 && i < inputs) phase.taps.push_back({k, i});
        }
        phases.push_back(phase);
    }
    return phases;
}

template <class T> class Convolution {
  public:
    Convolution(const transfuse_program& program, const void* input, int element, const int64_t* strides,
                const int64_t* inputs)
        : p(program), input(input), element(element), channels(conv_channels<T>(program)) {
        for (int i = 0; i < 5; i++) stride[i] = strides[i];
        for (int a = 0; a < 3; a++) n[a] = inputs[a];
        narrow = is_narrow<T>(p);
    }

    const Channels& out_channels() const { return channels; }

    // All outputs of tile.box of sample tile.n, into tile.values.
    void operator()(Tile<T>& tile) {
        tile.channels = channels;
        const Box& box = tile.box;
        Reads depth(p, 0, n[0], box.lo[0], box.hi[0]), height(p, 1, n[1], box.lo[1], box.hi[1]);
        std::vector<WidthPhase> phases = width_phases(p, n[2], box.lo[2], box.hi[2]);
        copy_inputs(tile.n, depth, height, phases);
        for (const WidthPhase& phase : phases) {
            list_taps(depth, height, phase);
            // Rows with the same phase use the same weights: one after another, while these are cached.
            for (int64_t pd = 0; pd < std::min(p.stride[0], box.size(0)); pd++)
                for (int64_t ph = 0; ph < std::min(p.stride[1], box.size(1)); ph++)
                    rows(tile, phase, pd, ph);
        }
    }

  private:
    const transfuse_program& p;
    const void* input;
    int element;
    Channels channels;
    int64_t stride[5], n[3];
    bool narrow;
    Buffer<T> copy;  // [depth][height][channel][width], zeros beyond the width's ends
    int64_t copied = 0, pitch = 0, first_column = 0;
    std::vector<Tap> taps;     // of all rows of the box, one row after another
    std::vector<size_t> ends;  // where each row's taps end

    void copy_inputs(int64_t sample, const Reads& depth, const Reads& height,
                     const std::vector<WidthPhase>& phases) {
        int64_t lo = INT64_MAX, hi = INT64_MIN;
        for (const WidthPhase& phase : phases)
            for (const auto& meets : phase.taps) {
                lo = std::min(lo, meets.input);
                hi = std::max(hi, meets.input + phase.count);
            }
        if (lo > hi) lo = hi = 0;
        first_column = lo;
        pitch = (hi - lo + LANES<T> - 1) / LANES<T> * LANES<T> + LANES<T>;
        if (pitch % 64 == 0) pitch += LANES<T>;  // powers of two would meet in one cache set
        int64_t rows = (depth.hi - depth.lo) * (height.hi - height.lo) * p.in_channels;
        if (rows * pitch > copied) {
            copy = allocate<T>(rows * pitch + 4 * LANES<T>);  // vectors may read beyond the last row
            copied = rows * pitch;
        }
        T* to = copy.get();
        int64_t from = std::max<int64_t>(lo, 0), until = std::min(hi, n[2]);
        for (int64_t d = depth.lo; d < depth.hi; d++)
            for (int64_t h = height.lo; h < height.hi; h++)
                for (int64_t c = 0; c < p.in_channels; c++, to += pitch) {
                    std::fill(to, to + (from - lo), T(0));
                    int64_t at = sample * stride[0] + c * stride[1] + d * stride[2] + h * stride[3] +
                                 from * stride[4];
                    if (until > from) load_row(element, input, at, stride[4], until - from, to + (from - lo));
                    std::fill(to + (std::max(until, from) - lo), to + pitch, T(0));
                }
    }

    // The taps of every row of the box, for one phase along the width.
    void list_taps(const Reads& depth, const Reads& height, const WidthPhase& phase) {
        const int64_t height_rows = height.hi - height.lo;
        const int64_t unit = p.in_channels / p.groups * wide();
        taps.clear();
        ends.assign(1, 0);
        for (const auto& row_depth : depth.of)
            for (const auto& row_height : height.of) {
                for (const auto& a : row_depth)
                    for (const auto& b : row_height)
                        for (const auto& e : phase.taps) {
                            int64_t row = (a.input - depth.lo) * height_rows + b.input - height.lo;
                            int64_t k = (a.tap * p.kernel[1] + b.tap) * p.kernel[2] + e.tap;
                            taps.push_back({row * p.in_channels * pitch + e.input - first_column, k * unit});
                        }
                ends.push_back(taps.size());
            }
    }

    void rows(Tile<T>& tile, const WidthPhase& phase, int64_t pd, int64_t ph) {
        const Box& box = tile.box;
        const int64_t cig = p.in_channels / p.groups;
        const int64_t all_taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
        // Input channels by parts, so that the weights of a part stay in the first-level cache.
        const int64_t some = std::max<int64_t>(1, all_taps / (p.stride[0] * p.stride[1] * p.stride[2]));
        int64_t part = std::max<int64_t>(16, L1_BYTES / int64_t(sizeof(T)) / (some * wide()) / 8 * 8);
        if (part * 2 > cig) part = cig;
        // Taps by parts, too: short sums, added up, keep rounding small.
        const int taps_at_once = int(std::max<int64_t>(1, TERMS / part));
        const int64_t blocks = narrow ? p.groups : channels.slots / wide();
        if (narrow) part = cig;
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t group = narrow ? block : block * wide() / channels.padded;
            const T* weights = static_cast<const T*>(p.weights) + block * all_taps * cig * wide();
            for (int64_t c0 = 0; c0 < cig; c0 += part) {
                const int count = int(std::min(part, cig - c0));
                const T* x = copy.get() + (group * cig + c0) * pitch;
                const T* w = weights + c0 * wide();
                for (int64_t d = pd; d < box.size(0); d += p.stride[0])
                    for (int64_t h = ph; h < box.size(1); h += p.stride[1]) {
                        const int64_t line = d * box.size(1) + h;
                        const Tap* t = taps.data() + ends[line];
                        const int met = int(ends[line + 1] - ends[line]);
                        T* s = tile.values +
                               (line * box.size(2) + phase.start - box.lo[2]) * channels.slots + block * wide();
                        if (narrow)
                            narrow_row(phase, t, met, x, w, s);
                        else if (p.careful)
                            careful_row(phase, t, met, x, count, w, s, c0 == 0);
                        else
                            for (int t0 = 0; t0 == 0 || t0 < met; t0 += taps_at_once) {
                                const auto sum = wide() == LANES<T> ? row<T, 1> : row<T, 2>;
                                sum(x, phase.count, t + t0, std::min(taps_at_once, met - t0), count, pitch, w, s,
                                    step(), c0 == 0 && t0 == 0);
                            }
                    }
            }
        }
    }

    int wide() const {
        const int64_t per_group = p.out_channels / p.groups;
        return narrow ? int(per_group) : vectors<T>(per_group) * LANES<T>;
    }
    int64_t step() const { return p.stride[2] * channels.slots; }

    // One position after another, each with the taps that meet an input: with weights that are not
    // finite, a product with a zero that stands for no input would be NaN.
    void careful_row(const WidthPhase& phase, const Tap* t, int count, const T* x, int some_channels, const T* w,
                     T* s, bool first) {
        std::vector<Tap> met;
        for (int64_t q = 0; q < phase.count; q++, s += step()) {
            met.clear();
            for (int i = 0; i < count; i++)
                if (exists(phase, i, q)) met.push_back(t[i]);
            auto one = wide() == LANES<T> ? block<T, 1, 1> : block<T, 1, 2>;
            one(x + q, met.data(), int(met.size()), some_channels, pitch, w, s, 0, first);
        }
    }

    // Whether the i-th tap of a row meets an input at position q of its phase.
    bool exists(const WidthPhase& phase, int i, int64_t q) const {
        int64_t input = phase.taps[i % phase.taps.size()].input + q;
        return input >= 0 && input < n[2];
    }

    // x * w in the lanes whose input exists, 0 in the others.
    Vec<T> met_products(const WidthPhase& phase, int i, int64_t q, Vec<T> x, T w) const {
        Vec<T> products = {};
        for (int l = 0; l < LANES<T>; l++)
            if (exists(phase, i, q + l)) products[l] = x[l] * w;
        return products;
    }

    // A group of few output channels: vectors of positions, each channel in registers of its own.
    void narrow_row(const WidthPhase& phase, const Tap* t, int count, const T* x, const T* w, T* s) {
        switch (wide()) {
            case 1: return narrow_row<1>(phase, t, count, x, w, s);
            case 2: return narrow_row<2>(phase, t, count, x, w, s);
            case 3: return narrow_row<3>(phase, t, count, x, w, s);
            default: return narrow_row<NARROW>(phase, t, count, x, w, s);
        }
    }

    template <int C>
    void narrow_row(const WidthPhase& phase, const Tap* t, int count, const T* x, const T* w, T* s) {
        constexpr int L = LANES<T>, N = 4;
        const int64_t cig = p.in_channels / p.groups;
        for (int64_t q = 0; q < phase.count; q += N * L) {
            Vec<T> acc[C][N] = {};
            for (int i = 0; i < count; i++)
                for (int64_t c = 0; c < cig; c++) {
                    const T* xp = x + t[i].x + c * pitch + q;
                    const T* wp = w + t[i].w + c * C;
#pragma GCC unroll 4
                    for (int j = 0; j < N; j++) {
                        Vec<T> xv = load(xp + j * L);
#pragma GCC unroll 4
                        for (int o = 0; o < C; o++)
                            acc[o][j] += p.careful ? met_products(phase, i, q + j * L, xv, wp[o]) : xv * wp[o];
                    }
                }
            const int64_t some = std::min<int64_t>(N * L, phase.count - q);
            for (int o = 0; o < C; o++) {
                T line[N * L];
                for (int j = 0; j < N; j++) store(line + j * L, acc[o][j]);
                for (int64_t l = 0; l < some; l++) s[(q + l) * step() + o] = line[l];
            }
        }
    }
};

}  // namespace TF_NAMESPACE

// Channels that are groups of their own, and only element steps follow: each row by itself, in vectors of positions.
// Rows that lie so in input and output need not be turned into vectors of channels and back, which takes longer than the
// few products.
#pragma once
#include <algorithm>
#include <vector>

#include "block.h"
#include "convert.h"
#include "convolution.h"
#include "division.h"
#include "source.h"
#include "weights.h"

namespace TF_NAMESPACE {

constexpr int64_t STRIP_VALUES = 2048;  // of all phases, in the first-level cache with the inputs that they read
constexpr int64_t WIDEST_STRIDE = 64;   // phases that a strip has room for

// to[i] = sum over taps t: from[t][i] * w[t]; vectors read and write beyond n, AHEAD vectors at the most.
constexpr int AHEAD = 8;
template <class T>
static void position_row(const T* const* from, const T* w, size_t count, int64_t n, T* __restrict to) {
    constexpr int L = LANES<T>;
    int64_t i = 0;
    const auto vectors = [&](auto some) {
        constexpr int N = decltype(some)::value;
        Vec<T> acc[N] = {};
        for (size_t t = 0; t < count; t++)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++) acc[j] += load(from[t] + i + j * L) * w[t];
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) store(to + i + j * L, acc[j]);
        i += N * L;
    };
    while (n - i > AHEAD / 2 * L) vectors(std::integral_constant<int, AHEAD>());
    while (n - i > 0) vectors(std::integral_constant<int, 1>());
}

template <class T> class ChannelRows {
  public:
    // What each thread has for itself.
    struct Own {
        Buffer<T> inputs;             // of a strip, one row after another, zeros beyond the ends
        Buffer<T> strip, line;        // [phase][position], and in the order of the output
        Buffer<T> beside;             // for steps
        std::vector<int64_t> rows;    // where those that an output row meets lie in the source
        std::vector<const T*> found;  // each of them from a strip's first position on
        // By tap, those of a phase together, which end where `ends` says.
        std::vector<Reads::Meets> taps;  // through the row `tap` of these
        std::vector<T> weights;
        std::vector<const T*> from;
        std::vector<size_t> ends;
    };

    // Whether a program runs so. With weights that are not finite, zeros beyond the ends may not be multiplied.
    static bool serves(const Layer& p, const Source<T>& source) {
        for (int i = 0; i < p.steps_count; i++)
            if (p.steps[i].op > TF_MAP) return false;
        return p.groups == p.in_channels && p.groups == p.out_channels && !p.sideways && !p.careful &&
               source.strides[4] == 1 && p.output_strides[4] == 1 && source.inputs[2] >= 2 * LANES<T> &&
               p.stride[2] <= WIDEST_STRIDE;
    }

    ChannelRows(const Layer& p, const Source<T>& source, const int64_t* extents)
        : p(p), source(source), extents(extents), phases(width_phases(p, source.inputs[2], 0, extents[2])) {
        for (const WidthPhase& phase : phases)
            for (const auto& meets : phase.taps) lo = std::min(lo, meets.input), hi = std::max(hi, meets.input + 1);
        lo = std::min(lo, hi);
        for (int a = 0; a < 2; a++) {
            reads[a] = Reads(p, a, source.inputs[a], 0, extents[a]);
            for (const auto& each : reads[a].of) most[a] = std::max(most[a], int64_t(each.size()));
        }
        for (int i = 0; i < p.steps_count; i++)
            for (int k = 0; p.steps[i].op == TF_MAP && k < p.steps[i].map->code.operands_count; k++)
                ordered = ordered || p.steps[i].map->operands[k].strides[4];
        const bool lanes = is_depthwise<T>(p);
        next_tap = lanes ? conv_channels<T>(p).slots : 1;
        next_channel = lanes ? 1 : p.kernel[0] * p.kernel[1] * p.kernel[2];
    }

    // Rows of all channels of all samples.
    int64_t count() const { return p.batch * p.groups * extents[0] * extents[1]; }

    Own own(int64_t room) const {
        constexpr int64_t beyond = AHEAD * LANES<T>;
        return {allocate<T>(most[0] * most[1] * pitch(STRIP_VALUES / p.stride[2])), allocate<T>(STRIP_VALUES + beyond),
                allocate<T>(STRIP_VALUES), allocate<T>(room), {}, {}, {}, {}, {}, {}};
    }

    // Row i; steps(values, how many, sample, channel, the first one's position) takes the rest of the program.
    template <class F> void row(Own& own, int64_t i, F steps) const {
        const int64_t h = i % extents[1], d = i / extents[1] % extents[0], nc = i / extents[1] / extents[0];
        const int64_t c = nc % p.groups, n = nc / p.groups, *st = p.output_strides;
        list(own, n, c, reads[0].of[size_t(d)], reads[1].of[size_t(h)]);
        const int64_t at = n * st[0] + c * st[1] + d * st[2] + h * st[3], first = i % (extents[0] * extents[1]) * extents[2];
        const transfuse_view out = {p.output_element, p.output, {}}, line = {COMPUTED<T>, own.line.get(), {}};
        const int64_t s = p.stride[2], whole = extents[2] / s, some = STRIP_VALUES / s;
        const auto strip = [&](int64_t q, int64_t positions, int64_t count) {
            read(own, q, positions);
            for (int64_t k = 0; k < count; k++) {
                const size_t from = own.ends[size_t(k)], taps = own.ends[size_t(k) + 1] - from;
                position_row(own.from.data() + from, own.weights.data() + from, taps, positions,
                             own.strip.get() + k * positions);
            }
            T* values = own.strip.get();
            if (ordered) write_block(line, 0, {count, positions}, {1, s}, values), values = own.line.get();
            if (p.steps_count) steps(values, count * positions, n, c, first + q * s);
            if (ordered)
                store_row(p.output_element, p.output, at + q * s, 1, count * positions, values);
            else
                write_block(out, at + q * s, {count, positions}, {1, s}, values);
        };
        for (int64_t q = 0; q < whole; q += some) strip(q, std::min(some, whole - q), s);
        if (whole * s < extents[2]) strip(whole, 1, extents[2] - whole * s);  // phases that have one position more
    }

  private:
    const Layer& p;
    const Source<T>& source;
    const int64_t* extents;
    const std::vector<WidthPhase> phases;
    Reads reads[2];
    int64_t lo = INT64_MAX, hi = INT64_MIN;  // inputs that the taps of the first position meet, or zeros before them
    int64_t most[2] = {0, 0};                // rows along depth and height that an output meets
    int64_t next_tap, next_channel;          // in the packed weights
    bool ordered = false;                    // whether a step tells the positions of a row apart

    // Inputs that a strip reads of a row, and what vectors read beyond them.
    int64_t pitch(int64_t positions) const { return positions + hi - lo + AHEAD * LANES<T>; }

    // The rows that an output row meets, and the taps of each phase.
    void list(Own& own, int64_t n, int64_t c, const std::vector<Reads::Meets>& planes,
              const std::vector<Reads::Meets>& rows) const {
        own.rows.clear(), own.taps.clear(), own.weights.clear(), own.ends.assign(1, 0);
        for (const auto& z : planes)
            for (const auto& y : rows)
                own.rows.push_back(n * source.strides[0] + c * source.strides[1] + z.input * source.strides[2] +
                                   y.input * source.strides[3]);
        const T* weights = static_cast<const T*>(p.weights) + c * next_channel;
        for (const WidthPhase& phase : phases) {
            int64_t row = 0;
            for (const auto& z : planes)
                for (const auto& y : rows) {
                    for (const auto& x : phase.taps) {
                        own.taps.push_back({row, x.input});
                        own.weights.push_back(weights[((z.tap * p.kernel[1] + y.tap) * p.kernel[2] + x.tap) * next_tap]);
                    }
                    row++;
                }
            own.ends.push_back(own.taps.size());
        }
    }

    // What a strip reads of each row, where it lies as far as it can be read there, else copied.
    void read(Own& own, int64_t q, int64_t positions) const {
        const int64_t size = pitch(positions), inputs = source.inputs[2];
        const bool inside = source.element == COMPUTED<T> && q + lo >= 0 && q + lo + size <= inputs;
        const int64_t first = std::max<int64_t>(q + lo, 0), end = std::max(first, std::min(q + lo + size, inputs));
        own.found.clear(), own.from.clear();
        T* to = own.inputs.get();
        for (int64_t row : own.rows) {
            if (inside) {
                own.found.push_back(static_cast<const T*>(source.data) + row + q);
                continue;
            }
            std::fill(to, to + (first - q - lo), T(0));
            load_row(source.element, source.data, row + first, 1, end - first, to + (first - q - lo));
            std::fill(to + (end - q - lo), to + size, T(0));
            own.found.push_back(to - lo);
            to += size;
        }
        for (const auto& each : own.taps) own.from.push_back(own.found[size_t(each.tap)] + each.input);
    }
};

}  // namespace TF_NAMESPACE

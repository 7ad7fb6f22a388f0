// Groups of few output channels, and only element steps follow: each row by itself, in vectors of positions. Rows that lie
// so in input and output need not be turned into vectors of channels and back, which takes longer than few products.
#pragma once
#include <algorithm>
#include <vector>

#include "before.h"
#include "block.h"
#include "convert.h"
#include "convolution.h"
#include "division.h"
#include "source.h"
#include "weights.h"

namespace TF_NAMESPACE {

constexpr int64_t ROWS_VALUES = 8192;   // of a channel's rows, or of a part of one: what a thread takes at a time
constexpr int64_t STRIP_VALUES = 2048;  // of all phases, in the first-level cache with the inputs that they read
constexpr int64_t INPUT_VALUES = 8192;  // of a strip, a row of each channel
constexpr int64_t WIDEST_STRIDE = 64;   // phases that a strip has room for
constexpr double FEWEST_A_ROW = 4;      // positions for each row of inputs that a row of outputs meets

// to[i] = sum over taps t: from[t][i] * w[t]; vectors read and write beyond n, as far as `reach` says.
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
    // One sum alone waits for itself, tap after tap.
    if (n - i > 2 * L) vectors(std::integral_constant<int, 4>());
    if (n - i > L) vectors(std::integral_constant<int, 2>());
    if (n - i > 0) vectors(std::integral_constant<int, 1>());
}
// Positions that its vectors take for n of them.
template <class T> static int64_t reach(int64_t n) {
    constexpr int64_t L = LANES<T>;
    const int64_t rest = n % (AHEAD * L), blocks = n - rest;
    return blocks + (rest > AHEAD / 2 * L ? AHEAD * L : rest > 2 * L ? 4 * L : rest > L ? 2 * L : rest > 0 ? L : 0);
}

template <class T> constexpr int64_t LONG_ROWS = 2 * AHEAD * LANES<T>;

template <class T> class ChannelRows {
  public:
    struct Row {
        int64_t at, place;  // in the source, and of its copy
        int64_t number;     // among all rows of the source: several may lie at one address
    };
    // A row's inputs from `first` + lo on.
    struct Copy {
        int64_t number = -1, first = 0, size = 0;
    };

    // What each thread has for itself.
    struct Own {
        Buffer<T> inputs;             // of a strip, a place for each row, zeros beyond the ends
        Buffer<T> strip, line;        // [phase][position], and in the order of the output
        Buffer<T> beside;             // for steps
        Buffer<T> operands;           // for maps of the inputs
        std::vector<Row> rows;        // those that an output row meets
        std::vector<Copy> copies;     // by place; rows of outputs that follow each other meet many of the same
        std::vector<const T*> found;  // each row from a strip's first position on
        // By tap, those of a phase together, which end where `ends` says: of this group through taps of these.
        int64_t group = -1;
        const std::vector<Reads::Meets>*planes = nullptr, *lines = nullptr;
        std::vector<Reads::Meets> taps;  // through the row `tap` of those met
        std::vector<T> weights;          // of an output channel, then of the next
        std::vector<const T*> from;
        std::vector<size_t> ends;
    };

    // Whether a program runs so. With weights that are not finite, zeros beyond the ends may not be multiplied.
    static bool serves(const Layer& p, const Source<T>& source) {
        for (int i = 0; i < p.steps_count; i++)
            if (p.steps[i].op > TF_MAP) return false;
        const bool few = is_narrow<T>(p) && !p.columns && !p.sideways && !p.careful && p.stride[2] <= WIDEST_STRIDE;
        if (!few || source.strides[4] != 1 || p.output_strides[4] != 1) return false;
        const int64_t width = source.inputs[2], ins = p.in_channels / p.groups;
        if (ins == 1 && p.groups == p.out_channels) return width >= 2 * LANES<T>;
        // Of several channels, rows so long that what it takes to find those that each meets is little beside their products.
        double rows = double(ins);
        for (int a = 0; a < 2; a++) rows *= double(ceiling(p.kernel[a], Taps(p, a).step));
        return width >= LONG_ROWS<T> && rows * FEWEST_A_ROW <= double(width);
    }

    ChannelRows(const Layer& p, const Source<T>& source, const int64_t* extents)
        : p(p), source(source), extents(extents), ins(p.in_channels / p.groups), outs(p.out_channels / p.groups),
          phases(width_phases(p, source.inputs[2], 0, extents[2])), before(p) {
        for (const WidthPhase& phase : phases)
            for (const auto& meets : phase.taps) lo = std::min(lo, meets.input), hi = std::max(hi, meets.input + 1);
        if (lo > hi) lo = hi = 0;
        for (int a = 0; a < 2; a++) {
            reads[a] = Reads(p, a, source.inputs[a], 0, extents[a]);
            for (const auto& each : reads[a].of) {
                int64_t low = INT64_MAX, high = 0;
                for (const auto& meets : each) low = std::min(low, meets.input), high = std::max(high, meets.input + 1);
                most[a] = std::max(most[a], int64_t(each.size()));
                places[a] = std::max(places[a], high - std::min(low, high));
            }
        }
        // Far apart, they would take more room than they save.
        kept = places[0] <= 2 * most[0] && places[1] <= 2 * most[1];
        for (int a = 0; kept && a < 2; a++)
            for (int64_t i = 0; i < source.inputs[a]; i++) place_of[a].push_back(i % std::max<int64_t>(1, places[a]) * (a ? 1 : places[1]));
        // Of many channels, strips so short that their inputs stay in the first-level cache.
        const int64_t longest = std::max<int64_t>(AHEAD * LANES<T>, INPUT_VALUES / ins);
        whole = extents[2] / p.stride[2], some = std::min(STRIP_VALUES / p.stride[2], longest);
        part = ceiling(ROWS_VALUES / p.stride[2], some) * some, parts = std::max<int64_t>(1, ceiling(whole, part));
        for (int i = 0; i < p.steps_count; i++)
            for (int k = 0; p.steps[i].op == TF_MAP && k < p.steps[i].map->code.operands_count; k++)
                ordered = ordered || p.steps[i].map->operands[k].strides[4];
        const bool lanes = is_depthwise<T>(p);
        next_tap = lanes ? conv_channels<T>(p).slots : ins * outs;
        next_group = lanes ? 1 : ins * outs * p.kernel[0] * p.kernel[1] * p.kernel[2];
    }

    // Parts of rows of all groups of all samples.
    int64_t count() const { return p.batch * p.groups * extents[0] * extents[1] * parts; }

    Own own(int64_t room) const {
        constexpr int64_t beyond = AHEAD * LANES<T>;
        Own own;
        own.inputs = allocate<T>(rows_held() * pitch(some));
        own.strip = allocate<T>(STRIP_VALUES + beyond), own.line = allocate<T>(STRIP_VALUES);
        own.beside = allocate<T>(room), own.operands = allocate<T>(before.room(pitch(some)));
        own.copies.resize(size_t(rows_held()));
        return own;
    }

    // Parts of rows i to end; steps(values, how many, sample, channel, the first one's position) takes the rest of the
    // program.
    template <class F> void rows(Own& own, int64_t i, int64_t end, F steps) const {
        int64_t k = i % parts, h = i / parts % extents[1], d = i / parts / extents[1] % extents[0];
        int64_t g = i / parts / extents[1] / extents[0] % p.groups, n = i / parts / extents[1] / extents[0] / p.groups;
        for (; i < end; i++) {
            row(own, n, g, d, h, k, steps);
            if (++k < parts) continue;
            k = 0;
            if (++h < extents[1]) continue;
            h = 0;
            if (++d < extents[0]) continue;
            d = 0;
            if (++g < p.groups) continue;
            g = 0, n++;
        }
    }

  private:
    template <class F> void row(Own& own, int64_t n, int64_t g, int64_t d, int64_t h, int64_t k, F steps) const {
        const int64_t* st = p.output_strides;
        list(own, n, g, reads[0].of[size_t(d)], reads[1].of[size_t(h)]);
        const int64_t at = n * st[0] + d * st[2] + h * st[3], first = (d * extents[1] + h) * extents[2];
        const transfuse_view out = {p.output_element, p.output, {}}, line = {COMPUTED<T>, own.line.get(), {}};
        const int64_t s = p.stride[2];
        const auto strip = [&](int64_t q, int64_t positions, int64_t count) {
            read(own, q, positions);
            for (int64_t o = 0; o < outs; o++) {
                const T* weights = own.weights.data() + size_t(o) * own.taps.size();
                for (int64_t k = 0; k < count; k++) {
                    const size_t from = own.ends[size_t(k)], taps = own.ends[size_t(k) + 1] - from;
                    position_row(own.from.data() + from, weights + from, taps, positions, own.strip.get() + k * positions);
                }
                const int64_t c = g * outs + o, to = at + c * st[1] + q * s;
                T* values = own.strip.get();
                if (ordered) write_block(line, 0, {count, positions}, {1, s}, values), values = own.line.get();
                if (p.steps_count) steps(values, count * positions, n, c, first + q * s);
                if (ordered)
                    store_row(p.output_element, p.output, to, 1, count * positions, values);
                else
                    write_block(out, to, {count, positions}, {1, s}, values);
            }
        };
        const int64_t end = std::min(whole, (k + 1) * part);
        for (int64_t q = k * part; q < end; q += some) strip(q, std::min(some, end - q), s);
        if (k + 1 == parts && whole * s < extents[2]) strip(whole, 1, extents[2] - whole * s);  // phases that have one position more
    }

    const Layer& p;
    const Source<T>& source;
    const int64_t* extents;
    const int64_t ins, outs;  // channels of a group
    const std::vector<WidthPhase> phases;
    const Before<T> before;
    Reads reads[2];
    int64_t lo = INT64_MAX, hi = INT64_MIN;  // inputs that the taps of the first position meet, or zeros before them
    int64_t most[2] = {0, 0};                // rows along depth and height that an output meets
    int64_t places[2] = {0, 0};              // and how many lie between the first and the last
    bool kept = false;                       // whether copies of rows serve the output rows that follow, too
    std::vector<int64_t> place_of[2];        // then: by input along depth and height, together the place of a row's copy
    int64_t whole, some;                     // positions that all phases have, and of a strip
    int64_t part, parts;                     // of a row, where it is long: strips of a thread, and how often
    int64_t next_tap, next_group;            // in the packed weights
    bool ordered = false;                    // whether a step tells the positions of a row apart

    // Inputs that a strip reads of a row, those of one position more, which some phases have, and what vectors read beyond.
    int64_t pitch(int64_t positions) const {
        return std::max(reach<T>(positions), positions + LANES<T>) + std::max<int64_t>(0, hi - lo);
    }

    int64_t rows_held() const { return ins * (kept ? places[0] * places[1] : most[0] * most[1]); }

    // The rows that an output row meets, and the taps of each phase.
    void list(Own& own, int64_t n, int64_t g, const std::vector<Reads::Meets>& planes,
              const std::vector<Reads::Meets>& lines) const {
        own.rows.clear();
        for (int64_t i = 0; i < ins; i++)
            for (const auto& z : planes)
                for (const auto& y : lines) {
                    int64_t place = int64_t(own.rows.size());
                    if (kept) place = i * places[0] * places[1] + place_of[0][size_t(z.input)] + place_of[1][size_t(y.input)];
                    const int64_t c = g * ins + i;
                    const int64_t number = ((n * p.in_channels + c) * source.inputs[0] + z.input) * source.inputs[1] + y.input;
                    own.rows.push_back({n * source.strides[0] + c * source.strides[1] + z.input * source.strides[2] +
                                            y.input * source.strides[3], place, number});
                }
        if (g == own.group && same_taps(planes, *own.planes) && same_taps(lines, *own.lines)) return;
        own.group = g, own.planes = &planes, own.lines = &lines;
        own.taps.clear(), own.weights.clear(), own.ends.assign(1, 0);
        const T* weights = static_cast<const T*>(p.weights) + g * next_group;
        for (int64_t o = 0; o < outs; o++)
            for (const WidthPhase& phase : phases) {
                int64_t row = 0;
                for (int64_t i = 0; i < ins; i++)
                    for (const auto& z : planes)
                        for (const auto& y : lines) {
                            const T* tap = weights + (z.tap * p.kernel[1] + y.tap) * p.kernel[2] * next_tap + i * outs + o;
                            for (const auto& x : phase.taps) {
                                if (o == 0) own.taps.push_back({row, x.input});
                                own.weights.push_back(tap[x.tap * next_tap]);
                            }
                            row++;
                        }
                if (o == 0) own.ends.push_back(own.taps.size());
            }
    }

    static bool same_taps(const std::vector<Reads::Meets>& a, const std::vector<Reads::Meets>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& i, const auto& k) { return i.tap == k.tap; });
    }

    // What a strip reads of each row, where it lies as far as it can be read there, else copied.
    void read(Own& own, int64_t q, int64_t positions) const {
        const int64_t size = pitch(positions), inputs = source.inputs[2], room = pitch(some);
        const bool inside = !before && source.element == COMPUTED<T> && q + lo >= 0 && q + lo + size <= inputs;
        own.found.clear(), own.from.resize(own.taps.size());
        for (const Row& row : own.rows) {
            if (inside) {
                own.found.push_back(static_cast<const T*>(source.data) + row.at + q);
                continue;
            }
            T* to = own.inputs.get() + row.place * room;
            Copy& copy = own.copies[size_t(row.place)];
            // One position's strip reads what is there of the one before.
            const bool there = copy.number == row.number && copy.first <= q && q + size - 1 <= copy.first + copy.size;
            if (!there) {
                const int64_t first = std::max<int64_t>(q + lo, 0), end = std::max(first, std::min(q + lo + size, inputs));
                std::fill(to, to + (first - q - lo), T(0));
                load_row(source.element, source.data, row.at + first, 1, end - first, to + (first - q - lo));
                if (before) {
                    const int64_t *n = source.inputs, h = row.number % n[1], d = row.number / n[1] % n[0];
                    const int64_t nc = row.number / n[1] / n[0];
                    const At at = {{nc / p.in_channels, nc % p.in_channels, d, h, first}};
                    before(to + (first - q - lo), {1, end - first}, room, at, 1, 4, own.operands.get());
                }
                std::fill(to + (end - q - lo), to + size, T(0));
                copy = {row.number, q, size};
            }
            own.found.push_back(to - lo + (q - copy.first));
        }
        for (size_t t = 0; t < own.taps.size(); t++) own.from[t] = own.found[size_t(own.taps[t].tap)] + own.taps[t].input;
    }
};

}  // namespace TF_NAMESPACE

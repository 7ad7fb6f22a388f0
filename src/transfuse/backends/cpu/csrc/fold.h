// Fold: one value for all along some axes.
//
// What is kept of the values seen so far are two numbers in double for each result, and how many values they
// stand for; two such sets can be merged. The division into sets, and the order in which they are merged,
// depend on the sizes alone.
#pragma once
#include <cmath>

#include "block.h"
#include "parallel.h"

namespace TF_NAMESPACE {

constexpr int TERMS = 32;               // that are added in the compute type before double takes over
constexpr int64_t FEWEST_ITEMS = 64;    // so that many threads find work
constexpr int64_t COLUMNS = 1024;       // results side by side
constexpr int64_t COLUMN_VALUES = 16384;  // of a block of columns, in the second-level cache
constexpr int64_t SHORT_COLUMNS = 256;    // results side by side, where the axes they lie along are short
constexpr int64_t SHORT_FOLDS = 4096;      // values of these axes: where they are more, each is better walked by itself
// Terms of a fold whose row is shorter than it takes to begin and end one: of sums, of exponentials, and where the last
// vector is not whole and no mask loads it.
constexpr int64_t SHORT_SUM = 20, SHORT_EXPONENTIALS = 40, SHORT_RAGGED = 64;

// A block whose rows are folded, one after another.
template <class T> struct Rows {
    const T* values;
    int64_t pitch, count, terms;  // results, and values of each

    T first(int64_t i) const { return values[i * pitch]; }

    // top[i]: the extremum by `fold`.
    template <class F> void extremum(F fold, T* top) const {
        constexpr int L = LANES<T>;
        for (int64_t i = 0; i < count; i++) {
            const T* row = values + i * pitch;
            Vec<T> found[4] = {fill(row[0]), fill(row[0]), fill(row[0]), fill(row[0])};
            int64_t k = 0;
            for (; k + 4 * L <= terms; k += 4 * L)
                for (int j = 0; j < 4; j++) found[j] = fold(found[j], load(row + k + j * L));
            for (; k + L <= terms; k += L) found[0] = fold(found[0], load(row + k));
            if (k < terms) found[0] = fold(found[0], load_some(row + k, terms - k, fill(row[0])));
            top[i] = fold_lanes<T>(fold(fold(found[0], found[1]), fold(found[2], found[3])), fold);
        }
    }

    // totals[k][i]: what add(x, by[i], t) adds to t[k], over all x. It adds nothing for `none`, or where that is NaN
    // for by[i].
    template <int KINDS, class F> void sums(T none, const T* by, F add, double* const* totals) const {
        constexpr int L = LANES<T>;
        for (int64_t i = 0; i < count; i++) {
            const T* row = values + i * pitch;
            const Vec<T> b = fill(by[i]), padding = none != none ? b : fill(none);
            double total[KINDS] = {};
            for (int64_t k = 0; k < terms;) {
                Vec<T> t[4][KINDS] = {};
                const int64_t end = std::min(terms, k + 4 * L * TERMS);
                for (; k + 4 * L <= end; k += 4 * L)
                    for (int j = 0; j < 4; j++) add(load(row + k + j * L), b, t[j]);
                for (; k + L <= end; k += L) add(load(row + k), b, t[0]);
                if (k < end) add(load_some(row + k, end - k, padding), b, t[0]), k = end;
                for (int j = 0; j < KINDS; j++)
                    total[j] += double(sum_lanes<T>((t[0][j] + t[1][j]) + (t[2][j] + t[3][j])));
            }
            for (int j = 0; j < KINDS; j++) totals[j][i] = total[j];
        }
    }
};

// A block whose columns are folded, side by side. Lines of results have room for whole vectors.
template <class T> struct Columns {
    const T* values;
    int64_t pitch, count, terms;

    T first(int64_t i) const { return values[i]; }

    template <class F> void extremum(F fold, T* top) const {
        std::copy(values, values + count, top);
        for (int64_t r = 1; r < terms; r++)
            each_vector(r, [&](Vec<T> x, int64_t i) { store(top + i, fold(load(top + i), x)); });
    }

    template <int KINDS, class F> void sums(T, const T* by, F add, double* const* totals) const {
        constexpr int L = LANES<T>;
        T part[KINDS][COLUMNS + L];
        for (int j = 0; j < KINDS; j++) std::fill(totals[j], totals[j] + count, 0.0);
        for (int64_t r = 0; r < terms; r += TERMS) {
            for (int j = 0; j < KINDS; j++) std::fill(part[j], part[j] + count + L, T(0));
            for (int64_t k = r; k < std::min(terms, r + TERMS); k++)
                each_vector(k, [&](Vec<T> x, int64_t i) {
                    Vec<T> t[KINDS];
                    for (int j = 0; j < KINDS; j++) t[j] = load(part[j] + i);
                    add(x, load(by + i), t);
                    for (int j = 0; j < KINDS; j++) store(part[j] + i, t[j]);
                });
            for (int j = 0; j < KINDS; j++)
                for (int64_t i = 0; i < count; i++) totals[j][i] += double(part[j][i]);
        }
    }

  private:
    template <class F> void each_vector(int64_t r, F f) const {
        const T* row = values + r * pitch;
        int64_t i = 0;
        for (; i + LANES<T> <= count; i += LANES<T>) f(load(row + i), i);
        if (i < count) f(load_some(row + i, count - i), i);
    }
};

// Two numbers for each of `count` results, standing for n values each: a sum; an extremum; a maximum, and the sum
// of the exponentials of what is below it; a mean, and the sum of squared deviations.
struct Set {
    double n;
    double *a, *b;
};

template <class T> class Foldings {
  public:
    Foldings(int folding, int64_t most) : folding(folding), zero(line(most)), top(line(most)), doubles(allocate<double>(most)) {}

    // The set of a block.
    template <class B> void set(const B& block, const Set& to) const {
        const int64_t count = block.count;
        const double n = double(block.terms);
        switch (folding) {
            case TF_F_SUM:
            case TF_F_MEAN: return block.template sums<1>(T(0), zero.get(), [](V x, V, V* t) { t[0] += x; }, &to.a);
            case TF_F_SQUARES:
                return block.template sums<1>(T(0), zero.get(), [](V x, V, V* t) { t[0] += x * x; }, &to.a);
            case TF_F_MAX:
            case TF_F_MIN:
                if (folding == TF_F_MAX)
                    block.extremum([](V a, V b) { return maximum(a, b); }, top.get());
                else
                    block.extremum([](V a, V b) { return minimum(a, b); }, top.get());
                return std::copy(top.get(), top.get() + count, to.a), void();
            case TF_F_MOMENTS: {
                // Shifted by the first value, so that the sums stay small beside a large mean.
                T* by = top.get();
                for (int64_t i = 0; i < count; i++) by[i] = std::isfinite(block.first(i)) ? block.first(i) : T(0);
                block.template sums<1>(NAN, by, [](V x, V b, V* t) { t[0] += x - b; }, &to.a);
                for (int64_t i = 0; i < count; i++) by[i] = T(double(by[i]) + to.a[i] / n);
                double* const totals[2] = {to.b, to.a};
                const auto add = [](V x, V b, V* t) {
                    const V d = x - b;
                    t[0] += d * d;
                    t[1] += d;
                };
                block.template sums<2>(NAN, by, add, totals);
                for (int64_t i = 0; i < count; i++) {
                    const double off = to.a[i] / n;  // what rounding the mean left out
                    const double m2 = to.b[i] - n * off * off;
                    to.a[i] = double(by[i]) + (std::isfinite(by[i]) ? off : 0);
                    to.b[i] = m2 < 0 ? 0 : m2;
                }
                return;
            }
            default: {
                block.extremum([](V a, V b) { return maximum(a, b); }, top.get());
                for (int64_t i = 0; i < count; i++) {
                    to.a[i] = double(top[i]);
                    if (top[i] == -INFINITY) top[i] = 0;  // nothing but -Inf: each adds exp(-Inf) = 0
                }
                const auto add = [](V x, V b, V* t) { t[0] += exponential(x - b); };
                return block.template sums<1>(T(-INFINITY), top.get(), add, &to.b);
            }
        }
    }

    // Both sets of `count` results into the first.
    void merge(Set& to, const Set& from, int64_t count) const {
        const double n = to.n, m = from.n, all = n + m;
        to.n = all;
        if (n == 0) {
            std::copy(from.a, from.a + count, to.a);
            if (two()) std::copy(from.b, from.b + count, to.b);
            return;
        }
        switch (folding) {
            case TF_F_SUM:
            case TF_F_MEAN:
            case TF_F_SQUARES:
                for (int64_t i = 0; i < count; i++) to.a[i] += from.a[i];
                return;
            case TF_F_MAX:
            case TF_F_MIN: {
                const bool most = folding == TF_F_MAX;
                for (int64_t i = 0; i < count; i++) {
                    const double a = to.a[i], b = from.a[i];
                    to.a[i] = a != a || (most ? a > b : a < b) ? a : b;
                }
                return;
            }
            case TF_F_MOMENTS:  // Chan et al. 1979
                for (int64_t i = 0; i < count; i++) {
                    const double a = to.a[i], b = from.a[i], delta = b - a;
                    // The mean of values of which some are Inf is Inf, and Inf - Inf would make it NaN.
                    to.a[i] = delta - delta == 0 ? a + delta * m / all : (a * n + b * m) / all;
                    to.b[i] += from.b[i] + delta * delta * n * m / all;
                }
                return;
            default: rescaled(to, from, count);
        }
    }

    // What a set stands for: its results in place of its numbers.
    void results(const Set& of, int64_t count) const {
        for (int64_t i = 0; i < count; i++) {
            double &a = of.a[i], &b = of.b[i];
            switch (folding) {
                case TF_F_MEAN:
                case TF_F_SQUARES: a /= of.n; break;
                case TF_F_MOMENTS: b /= of.n; break;
                case TF_F_LOGSUMEXP: a = a - a == 0 ? a + std::log(b) : a; break;  // Inf, -Inf and NaN are what they are
                default: break;
            }
        }
    }

    // What there is before any value.
    void none(Set& to, int64_t count) const {
        const bool below = folding == TF_F_MAX || folding == TF_F_LOGSUMEXP || folding == TF_F_EXPONENTIALS;
        const double a = below ? -INFINITY : folding == TF_F_MIN ? INFINITY : 0;
        to.n = 0;
        std::fill(to.a, to.a + count, a);
        std::fill(to.b, to.b + count, 0.0);
    }

    bool two() const { return folding >= TF_F_LOGSUMEXP && folding <= TF_F_MOMENTS; }

  private:
    typedef Vec<T> V;
    const int folding;
    const Buffer<T> zero, top;
    const Buffer<double> doubles;

    static Buffer<T> line(int64_t most) {
        Buffer<T> found = allocate<T>(most + LANES<T>);
        std::fill(found.get(), found.get() + most + LANES<T>, T(0));
        return found;
    }

    // Both sums of exponentials to the larger of the maxima.
    void rescaled(Set& to, const Set& from, int64_t count) const {
        T* share = top.get();
        double* most = doubles.get();
        const auto add = [&](const double* a, const double* b, bool first) {
            for (int64_t i = 0; i < count; i++) share[i] = a[i] == most[i] ? T(0) : T(a[i] - most[i]);
            for (int64_t i = 0; i < count; i += LANES<T>) store(share + i, exponential(load(share + i)));
            for (int64_t i = 0; i < count; i++) to.b[i] = (first ? 0 : to.b[i]) + b[i] * double(share[i]);
        };
        for (int64_t i = 0; i < count; i++) most[i] = to.a[i] > from.a[i] || to.a[i] != to.a[i] ? to.a[i] : from.a[i];
        add(to.a, to.b, true);
        add(from.a, from.b, false);
        std::copy(most, most + count, to.a);
    }
};

template <class T> class Fold {
  public:
    Fold(const transfuse_sweep& s, int threads)
        : s(s), threads(threads), kept(s.kept - 1), folded(s.kept + s.folded - 1), joined(std::max(s.joined, 1)),
          all(product(0, s.kept)), rows(product(s.kept, folded)), side(sides()),
          reader(s.values, s.values_count, s.before, grid()), result_sizes(joined_sizes()),
          after(s.others, s.others_count, s.after, results_grid()) {
        for (const transfuse_view& out : s.outs) lies.emplace_back(results_grid(), out);
    }

    void run() {
        const int64_t width = s.sizes[folded];
        if (s.across) {
            // Beside one another results of whole axes, where the last one is short.
            results = side > 1 ? side * s.sizes[kept] : std::min(s.sizes[kept], COLUMNS / joined * joined);
            lines = std::min(rows * width, std::max<int64_t>(1, COLUMN_VALUES / results));
            pieces = ceiling(s.sizes[kept] * side, results);
            chunks = all / s.sizes[kept] / side * pieces;
            steps = lines ? ceiling(rows * width, lines) : 0;
        } else {
            // Whole folds, several at a time, or parts of one.
            terms = std::min(width, BLOCK_VALUES);
            lines = terms < width ? 1 : std::min(rows, std::max<int64_t>(1, BLOCK_VALUES / std::max<int64_t>(1, terms)));
            const int64_t whole = terms == width && lines == rows ? std::max<int64_t>(1, rows * width) : BLOCK_VALUES;
            results = std::min({all, std::max<int64_t>(1, BLOCK_VALUES / whole), COLUMNS});
            chunks = ceiling(all, results);
            steps = rows && width ? ceiling(rows, lines) * ceiling(width, terms) : 0;
        }
        // Few results of long folds: these are cut into as many parts as threads may want, by the sizes alone.
        const int64_t work = results * lines * (s.across ? 1 : terms) * steps;
        const int64_t parts = std::max<int64_t>(1, std::min({steps, ceiling(FEWEST_ITEMS, chunks), work / ITEM_VALUES}));
        if (parts > 1) return in_parts(parts);
        const int64_t some = std::max<int64_t>(1, ITEM_VALUES / std::max<int64_t>(1, work)), items = ceiling(chunks, some);
        in_parallel(count(items), items, [&] { return Own(*this); }, [&](Own& own, int64_t item) {
            for (int64_t chunk = item * some; chunk < std::min(chunks, (item + 1) * some); chunk++) {
                part(own, chunk, 0, steps, own.set);
                finish(own, chunk, own.set);
            }
        });
    }

  private:
    const transfuse_sweep& s;
    const int threads, kept, folded;  // the last axes of the two kinds
    const int64_t joined;             // results beside one another that make one in the end
    const int64_t all, rows, side;    // results; along the folded axes but the last; results beside the last axis
    const Reader<T> reader;
    const std::vector<int64_t> result_sizes;  // of the axes that are kept, once neighbours are joined
    const Reader<T> after;
    std::vector<Lie> lies;           // of the outputs
    int64_t results = 0;             // of a chunk
    int64_t lines = 0, terms = 0;    // of a block: rows for each result, and values of a row where these are folded
    int64_t pieces = 0;              // of the last axis that is kept, where vectors lie along it
    int64_t chunks = 0, steps = 0;   // blocks that make one fold

    // Axes before the last that are kept, whose results lie beside one another: those of short ones, in short folds.
    int64_t sides() const {
        int64_t found = 1;
        if (!s.across || product(kept, folded + 1) >= SHORT_FOLDS) return found;
        for (int a = kept; a-- > 0 && found * s.sizes[a] * s.sizes[kept] <= SHORT_COLUMNS;) found *= s.sizes[a];
        return found;
    }

    // Rows of folded values: [kept][folded]; or [folded][kept beside one another].
    Grid grid() const {
        Grid found = {s.sizes, {}, s.across ? kept : folded};
        if (!s.across)
            for (int a = 0; a < folded; a++) found.axes.push_back(a);
        if (!s.across) return found;
        for (int a = s.kept; a <= folded; a++) found.axes.push_back(a);
        for (int64_t a = kept, whole = 1; whole < side;) {
            whole *= s.sizes[--a];
            found.axes.insert(found.axes.begin() + s.folded, int(a));
        }
        return found;
    }
    Grid results_grid() const {
        Grid found = {result_sizes.data(), {}, -1};
        for (int a = 0; a < s.kept; a++) found.axes.push_back(a);
        return found;
    }
    std::vector<int64_t> joined_sizes() const {
        std::vector<int64_t> found(s.sizes, s.sizes + s.kept);
        found[kept] /= joined;
        return found;
    }

    // What a thread has for itself.
    struct Own {
        Buffer<T> room, turned;
        Repeated repeated;
        Buffer<double> numbers;
        Set set, block, neighbour;
        Foldings<T> foldings;
        explicit Own(const Fold& f)
            : room(allocate<T>(std::max(f.reader.room(f.values()), f.after.room(f.results)))),
              turned(allocate<T>(f.turns() ? f.values() : 0)),
              numbers(allocate<double>(6 * f.results)),
              set{0, numbers.get(), numbers.get() + f.results},
              block{0, numbers.get() + 2 * f.results, numbers.get() + 3 * f.results},
              neighbour{0, numbers.get() + 4 * f.results, numbers.get() + 5 * f.results},
              foldings(f.s.folding, f.results) {}
    };

    int count(int64_t items) const { return int(std::min<int64_t>(threads, items)); }
    int64_t product(int first, int last) const {
        int64_t all = 1;
        for (int a = first; a < last; a++) all *= s.sizes[a];
        return all;
    }
    int64_t values() const { return std::max<int64_t>(1, results * lines * (s.across ? 1 : terms)); }
    // Whether rows are so short that vectors lie better along the results.
    bool turns() const {
        const bool ragged = TF_BYTES < 64 && lines * terms % LANES<T>;
        const bool exponentials = s.folding == TF_F_EXPONENTIALS || s.folding == TF_F_LOGSUMEXP;
        const int64_t fewest = ragged ? SHORT_RAGGED : exponentials ? SHORT_EXPONENTIALS : SHORT_SUM;
        return !s.across && steps == 1 && results >= LANES<T> && lines * terms < fewest;
    }

    // The first of a chunk's results, and how many there are.
    int64_t first_of(int64_t chunk) const {
        return s.across ? chunk / pieces * s.sizes[kept] * side + chunk % pieces * results : chunk * results;
    }
    int64_t results_of(int64_t chunk) const {
        return s.across ? std::min(results, s.sizes[kept] * side - chunk % pieces * results)
                        : std::min(results, all - first_of(chunk));
    }

    // The set of a chunk of results over some of the blocks that make their folds.
    void part(Own& own, int64_t chunk, int64_t begin, int64_t end, Set& to) const {
        own.foldings.none(to, results_of(chunk));
        for (int64_t step = begin; step < end; step++) {
            s.across ? columns(own, chunk, step) : folds(own, chunk, step);
            own.foldings.merge(to, own.block, results_of(chunk));
        }
    }

    void columns(Own& own, int64_t chunk, int64_t step) const {
        const int64_t n = results_of(chunk), first = first_of(chunk), row = step * lines;
        const int64_t some = std::min(lines, rows * s.sizes[folded] - row);
        int64_t at[UINT8_MAX];
        for (int k = 0; k < s.values_count; k++)
            at[k] = offset_of(s.values[k], s.sizes, 0, kept, side > 1 ? first / (s.sizes[kept] * side) * side : first / s.sizes[kept]) +
                    first % s.sizes[kept] * s.values[k].strides[kept];
        const Extent e = {some * side, n / side};
        const Placed<T> v = reader(at, row * side, e, own.room.get(), side > 1, &own.repeated);
        own.block.n = double(some);
        own.foldings.set(Columns<T>{v.at, v.pitch * side, n, some}, own.block);
    }

    void folds(Own& own, int64_t chunk, int64_t step) const {
        const int64_t n = results_of(chunk), along = ceiling(s.sizes[folded], terms);
        const int64_t line = step / along * lines, first = step % along * terms;
        const Extent e = {std::min(lines, rows - line) * n, std::min(terms, s.sizes[folded] - first)};
        int64_t at[UINT8_MAX];
        for (int k = 0; k < s.values_count; k++) at[k] = first * s.values[k].strides[folded];
        const int64_t deep = e.rows / n, some = deep * e.width;
        const Placed<T> v = reader(at, first_of(chunk) * rows + line, e, own.room.get(), deep > 1);
        own.block.n = double(some);
        if (turns()) {
            turn(v.at, v.pitch * deep, {n, some}, own.turned.get(), n);
            return own.foldings.set(Columns<T>{own.turned.get(), n, n, some}, own.block);
        }
        own.foldings.set(Rows<T>{v.at, v.pitch * deep, n, some}, own.block);
    }

    void in_parts(int64_t parts) const {
        const int64_t some = ceiling(steps, parts), sets = ceiling(steps, some);
        const Buffer<double> memory = allocate<double>(chunks * sets * 2 * results);
        std::vector<double> counts(chunks * sets);
        const auto set = [&](int64_t i) {
            double* a = memory.get() + i * 2 * results;
            return Set{counts[i], a, a + results};
        };
        in_parallel(count(chunks * sets), chunks * sets, [&] { return Own(*this); }, [&](Own& own, int64_t i) {
            Set to = set(i);
            part(own, i / sets, i % sets * some, std::min(steps, (i % sets + 1) * some), to);
            counts[i] = to.n;
        });
        in_parallel(count(chunks), chunks, [&] { return Own(*this); }, [&](Own& own, int64_t chunk) {
            own.foldings.none(own.set, results_of(chunk));
            for (int64_t i = 0; i < sets; i++) own.foldings.merge(own.set, set(chunk * sets + i), results_of(chunk));
            finish(own, chunk, own.set);
        });
    }

    // A set of `count` results from one in which each is so many neighbours; it stands in the place of a block's.
    const Set& join(Own& own, const Set& set, int64_t count) const {
        own.foldings.none(own.block, count);
        for (int64_t j = 0; j < joined; j++) {
            own.neighbour.n = set.n;
            for (int64_t i = 0; i < count; i++) {
                own.neighbour.a[i] = set.a[i * joined + j];
                own.neighbour.b[i] = set.b[i * joined + j];
            }
            own.foldings.merge(own.block, own.neighbour, count);
        }
        return own.block;
    }

    void finish(Own& own, int64_t chunk, const Set& found) const {
        const Extent e = {results_of(chunk) / joined, 1};
        const int64_t first = first_of(chunk) / joined;
        const Set& set = joined > 1 ? join(own, found, e.rows) : found;
        const int64_t at[UINT8_MAX] = {};
        own.foldings.results(set, e.rows);
        own.repeated.forget();  // the room is needed here
        T* to = own.room.get() + after.count() * e.rows;
        const bool two = s.folding == TF_F_EXPONENTIALS || s.folding == TF_F_MOMENTS;
        for (int i = 0; i < 1 + two; i++) {
            std::copy(i ? set.b : set.a, (i ? set.b : set.a) + e.rows, to);
            if (after.map) after.into(to, 1, at, first, e, own.room.get());
            write_rows(s.outs[i], lies[i], 0, first, e, to);
        }
    }
};

}  // namespace TF_NAMESPACE

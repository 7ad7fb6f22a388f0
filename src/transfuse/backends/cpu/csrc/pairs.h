// Two rows of outputs at once, with fewer products than one after the other (Winograd 1980; two taps:
// Karatsuba). Taps g0, g1, … meet ascending input rows x0, x1, … in the first row, x1, x2, … in the
// second: neighbours where the stride is a multiple of the dilation, else rows that lie further apart.
//
//   y0 = A + B + C    y1 = B - C + D
//
//               A             B                         C                         D
//   one tap     x0 g0                                                             x1 g0
//   two taps    (x0 - x1) g0  x1 (g0 + g1)                                        (x2 - x1) g1
//   three taps  (x0 - x2) g0  (x1 + x2) (g0+g1+g2) / 2  (x2 - x1) (g0-g1+g2) / 2  (x3 - x1) g2
//
// More taps are taken as threes and a rest: 7 products for 10 with five taps, 4 for 6 with three.
// Sums and differences of inputs are rows beside the inputs, made once for all output channels;
// those of weights lie beside the weights. They are taken for ordinary values only: where a
// difference would be Inf - Inf, or a sum might overflow, rows are computed one by one.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "program.h"
#include "taps.h"

namespace TF_NAMESPACE {

constexpr double TAME = 1.125899906842624e15;  // 2^50: no product of two, nor a sum of those, overflows

enum Part { A, D, B, C, PARTS };

// A sum of weights: of two taps, or half of three with this sign in the middle.
struct MixedWeights {
    int count, sign;
    int64_t taps[3];
    // Of n channels; `of(t)` are the weights of tap t.
    template <class T, class F> void operator()(F of, int64_t n, T* to) const {
        const T *a = of(taps[0]), *b = of(taps[1]), *c = of(taps[2]);
        if (count == 2)
            for (int64_t i = 0; i < n; i++) to[i] = T(double(a[i]) + double(b[i]));
        else
            for (int64_t i = 0; i < n; i++) to[i] = T((double(a[i]) + sign * double(b[i]) + double(c[i])) / 2);
    }
};

// How far apart the rows of a pair are, in outputs; in inputs, what neighbouring taps of a row meet is.
static inline int64_t outputs_apart(const transfuse_program& p) { return Taps(p, 1).step * p.dilation[1]; }
static inline int64_t inputs_apart(const transfuse_program& p) { return outputs_apart(p) / p.stride[1]; }

// x[row] + sign * x[other], times the weights at `tap`: a tap's own, or beyond all taps mixed ones.
struct Product {
    Part part;
    int64_t row, other;
    int sign;  // 0: no other
    int64_t tap;
};

// The products of one, two or three taps as above; a tap is one of these, or stands for their sum or difference.
constexpr int SUM = 3, DIFFERENCE = 4;
constexpr Product OF_ONE[] = {{A, 0, 0, 0, 0}, {D, 1, 0, 0, 0}};
constexpr Product OF_TWO[] = {{A, 0, 1, -1, 0}, {B, 1, 0, 0, SUM}, {D, 2, 1, -1, 1}};
constexpr Product OF_THREE[] = {{A, 0, 2, -1, 0}, {B, 1, 2, 1, SUM}, {C, 2, 1, -1, DIFFERENCE}, {D, 3, 1, -1, 2}};

// f(row of the first tap, taps, product) for each product of so many taps.
template <class F> static inline void each_product(int64_t taps, F f) {
    for (int64_t i = 0; i < taps; i += 3) {
        const int count = int(std::min<int64_t>(3, taps - i));
        const Product* found = count == 1 ? OF_ONE : count == 2 ? OF_TWO : OF_THREE;
        for (int k = 0; k <= count; k++) f(i, count, found[k]);
    }
}

// What pairs of rows need, by their phase.
struct Pairs {
    // By (output + padding) % stride; rows are counted from the first tap's, in steps of `inputs_apart`.
    std::vector<std::vector<Product>> phases;
    std::vector<int64_t> last_tap;             // by phase: the tap that meets the first input row
    std::vector<MixedWeights> mixed;

    explicit Pairs(const transfuse_program& p) {
        const Taps all(p, 1);
        const int64_t kernel = p.kernel[1], stride = p.stride[1];
        for (int64_t phase = 0; phase < stride; phase++) {
            std::vector<int64_t> taps;  // in the order of the inputs they meet
            const int64_t first = all.first(phase);
            if (first >= 0 && first < kernel)
                for (int64_t k = first + (kernel - 1 - first) / all.step * all.step; k >= first; k -= all.step)
                    taps.push_back(k);
            phases.emplace_back();
            last_tap.push_back(taps.empty() ? -1 : taps[0]);
            each_product(int64_t(taps.size()), [&](int64_t row, int count, Product product) {
                const int64_t* own = &taps[size_t(row)];
                if (product.tap >= SUM) {
                    mixed.push_back({count, product.tap == SUM ? 1 : -1, {own[0], own[1], own[count - 1]}});
                    product.tap = kernel + int64_t(mixed.size()) - 1;
                } else {
                    product.tap = own[product.tap];
                }
                product.row += row, product.other += row;
                phases.back().push_back(product);
            });
        }
    }
};

constexpr int64_t MANY_ROWS = 256;  // of outputs: what is not saved near the ends of the height is little of it

// Products that pairs of rows take, as a share of those that rows take one by one.
static inline double share_in_pairs(const transfuse_program& p) {
    const Taps taps(p, 1);
    const int64_t n = p.spatial[1], s = p.stride[1], kernel = p.kernel[1], apart = outputs_apart(p), next = apart / s;
    const int64_t rows = outputs_of(p, 1);
    if (apart >= rows) return 1;
    if (kernel > MANY_ROWS) return 2.0 / 3;  // nearly all of them by threes
    int64_t one_by_one = 0, in_pairs = 0;
    for (int64_t o = 0; o < std::min(rows, MANY_ROWS); o++) {
        const int64_t at = o + p.padding[1], tap = taps.first(at);
        if (o / apart % 2 || tap < 0 || tap >= kernel) continue;  // the second of a pair, or none of a phase without taps
        const int64_t count = (kernel - 1 - tap) / taps.step + 1;
        const int64_t first = (at - (tap + (count - 1) * taps.step) * p.dilation[1]) / s;  // row
        const auto exists = [&](int64_t row) { return first + row * next >= 0 && first + row * next < n; };
        int64_t each = 0, both = 0;
        const int second = o + apart < rows;
        for (int64_t i = 0; i < count; i++) each += exists(i) + second * exists(i + 1);
        each_product(count, [&](int64_t i, int, const Product& product) {
            both += exists(i + product.row) || (product.sign && exists(i + product.other));
        });
        one_by_one += each;
        in_pairs += second ? std::min(each, both) : each;
    }
    return double(in_pairs) / double(std::max<int64_t>(1, one_by_one));
}

}  // namespace TF_NAMESPACE

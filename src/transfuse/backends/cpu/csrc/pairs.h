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
            for (size_t i = 0; i < taps.size();) {
                const int count = int(std::min<size_t>(3, taps.size() - i));
                piece(phases.back(), int64_t(i), count, &taps[i], kernel);
                i += count;
            }
        }
    }

  private:
    void piece(std::vector<Product>& to, int64_t row, int count, const int64_t* taps, int64_t kernel) {
        const auto mix = [&](int sign) {
            mixed.push_back({count, sign, {taps[0], taps[1], taps[count - 1]}});
            return kernel + int64_t(mixed.size()) - 1;
        };
        if (count == 1) {
            to.push_back({A, row, 0, 0, taps[0]});
            to.push_back({D, row + 1, 0, 0, taps[0]});
        } else if (count == 2) {
            to.push_back({A, row, row + 1, -1, taps[0]});
            to.push_back({B, row + 1, 0, 0, mix(1)});
            to.push_back({D, row + 2, row + 1, -1, taps[1]});
        } else {
            to.push_back({A, row, row + 2, -1, taps[0]});
            to.push_back({B, row + 1, row + 2, 1, mix(1)});
            to.push_back({C, row + 2, row + 1, -1, mix(-1)});
            to.push_back({D, row + 3, row + 1, -1, taps[2]});
        }
    }
};

}  // namespace TF_NAMESPACE

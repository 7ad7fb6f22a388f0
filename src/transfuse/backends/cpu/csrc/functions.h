// Elementary functions of vectors, beside the exponential and the hyperbolic tangent of vector.h.
//
// float32: polynomials fitted for the smallest largest error over the reduced range; tests hold each
// function to its bound in ulp over its whole range. float64: the C library's, lane by lane.
#pragma once
#include "vector.h"

namespace TF_NAMESPACE {

template <class F> TF_INLINE Vec<double> lane_by_lane(Vec<double> x, F f) {
    for (int i = 0; i < LANES<double>; i++) x[i] = f(x[i]);
    return x;
}

#if TF_BYTES == 64
TF_INLINE Vec<float> root(Vec<float> x) { return (Vec<float>)_mm512_maskz_sqrt_ps(0xffff, (__m512)x); }
TF_INLINE Vec<double> root(Vec<double> x) { return (Vec<double>)_mm512_maskz_sqrt_pd(0xff, (__m512d)x); }
#elif TF_BYTES == 32
TF_INLINE Vec<float> root(Vec<float> x) { return (Vec<float>)_mm256_sqrt_ps((__m256)x); }
TF_INLINE Vec<double> root(Vec<double> x) { return (Vec<double>)_mm256_sqrt_pd((__m256d)x); }
#else
template <class V> TF_INLINE V root(V x) {
    for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); i++) x[i] = std::sqrt(x[i]);
    return x;
}
#endif

// The next whole number at or below x; from 2^23 (2^52) on every value is whole.
template <class T> TF_INLINE Vec<T> whole_below(Vec<T> x) {
    const T all = sizeof(T) == 4 ? T(1 << 23) : T(int64_t(1) << 52);
    const Vec<T> small = magnitude<T>(x) < all ? x : Vec<T>{};  // what can be converted
    const Vec<T> n = __builtin_convertvector(__builtin_convertvector(small, Mask<T>), Vec<T>);
    const Vec<T> down = with_sign<T>(n > small ? n - T(1) : n, x);
    return magnitude<T>(x) < all ? down : x;
}

// x = 2^n m with m from sqrt(1/2) to sqrt(2); ln m = f - f^2/2 + f^3 p(f), f = m - 1.
TF_INLINE Vec<float> logarithm(Vec<float> x) {
    typedef Vec<float> V;
    typedef Mask<float> M;
    const M tiny = x < 1.17549435e-38f;
    const V y = tiny ? x * 8388608.0f : x;
    typedef uint32_t U __attribute__((vector_size(TF_BYTES)));  // wraps where x is negative
    const M bits = (M)((U)y - 0x3f3504f3u);  // those of sqrt(1/2)
    const V n = __builtin_convertvector(bits >> 23, V) - (tiny ? fill(23.0f) : V{});
    const V f = (V)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    V p = fill(6.746489958e-2f);
    p = p * f - 1.167561535e-1f;
    p = p * f + 1.188821176e-1f;
    p = p * f - 1.240559787e-1f;
    p = p * f + 1.421954637e-1f;
    p = p * f - 1.666799517e-1f;
    p = p * f + 2.000211897e-1f;
    p = p * f - 2.500000962e-1f;
    p = p * f + 3.333331260e-1f;
    const V z = f * f;
    V r = p * f * z + n * 1.42860677e-6f;
    r = r - 0.5f * z + f + n * 0.693145751953125f;  // ln 2 in two parts, the first exact times n
    r = x == 0.0f ? fill(-INFINITY) : r;
    r = x == INFINITY ? x : r;
    return x < 0.0f || x != x ? fill(NAN) : r;
}
TF_INLINE Vec<double> logarithm(Vec<double> x) {
    return lane_by_lane(x, [](double a) { return std::log(a); });
}

// ln(1 + x): what 1 + x loses in rounding is made good by the factor x / ((1 + x) - 1).
TF_INLINE Vec<float> logarithm_1p(Vec<float> x) {
    typedef Vec<float> V;
    const V u = 1.0f + x, d = u - 1.0f;
    const V r = logarithm(u) * (x / d);
    return d == 0.0f || x == INFINITY ? x : (u == 0.0f ? fill(-INFINITY) : r);
}
TF_INLINE Vec<double> logarithm_1p(Vec<double> x) {
    return lane_by_lane(x, [](double a) { return std::log1p(a); });
}

// e^x - 1 = 2^n (e^r - 1) + (2^n - 1), r = x - n ln 2; from 2^24 on the 1 does not matter.
TF_INLINE Vec<float> exponential_m1(Vec<float> x) {
    typedef Vec<float> V;
    const V y = clamp(x, fill(-30.0f), fill(30.0f));
    const V n = (y * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    V r = y - n * 0.693145751953125f;
    r = r - n * 1.42860677e-6f;
    V p = fill(1.984599977e-4f);
    p = p * r + 1.394062915e-3f;
    p = p * r + 8.333389150e-3f;
    p = p * r + 4.166636087e-2f;
    p = p * r + 1.666666637e-1f;
    p = p * r + 5.000000044e-1f;
    const V q = p * (r * r) + r, s = scaled(fill(1.0f), n);
    const V near = n == 0.0f ? q : s * q + (s - 1.0f);
    return x == 0.0f ? x : (x > 30.0f ? exponential(x) : near);
}
TF_INLINE Vec<double> exponential_m1(Vec<double> x) {
    return lane_by_lane(x, [](double a) { return std::expm1(a); });
}

// erf: x (1 + p(x^2)) up to 0.9, beyond it 1 - exp(-q(x)).
TF_INLINE Vec<float> error_function(Vec<float> x) {
    typedef Vec<float> V;
    const V m = magnitude<float>(x), s = x * x;
    V p = fill(-6.111284947e-4f);
    p = p * s + 5.016226934e-3f;
    p = p * s - 2.678195589e-2f;
    p = p * s + 1.128222993e-1f;
    p = p * s - 3.761253244e-1f;
    p = p * s + 1.283791553e-1f;
    const V near = p * x + x;
    const V t = smaller(m, fill(4.0f));
    V q = fill(2.082891442e-5f);
    q = q * t - 4.313967773e-4f;
    q = q * t + 4.156269492e-3f;
    q = q * t - 2.508065239e-2f;
    q = q * t + 1.082204359e-1f;
    q = q * t + 6.334008069e-1f;
    q = q * t + 1.129488427f;
    q = q * t - 1.692090669e-4f;
    const V far = with_sign<float>(1.0f - exponential(-q), x);
    return x != x ? x : (m < 0.9f ? near : far);
}
TF_INLINE Vec<double> error_function(Vec<double> x) {
    return lane_by_lane(x, [](double a) { return std::erf(a); });
}

// x = n pi/2 + r, |r| <= pi/4, with pi/2 in four parts, the first three exact times n; a sine or a cosine of r, by the quarter.
// Beyond 8192 the parts no longer suffice, and the C library serves, lane by lane.
TF_INLINE Vec<float> of_circle(Vec<float> x, int quarter) {
    typedef Vec<float> V;
    typedef Mask<float> M;
    const M far = magnitude<float>(x) > 8192.0f;
    const V y = far ? V{} : x;
    const V k = (y * 0.636619772f + 12582912.0f) - 12582912.0f;
    V r = y - k * 1.5703125f;
    r = r - k * 4.837512969970703125e-4f;
    r = r - k * 7.549533620476723e-8f;
    r = r - k * 2.5633441e-12f;
    const V s = r * r;
    const V sine = ((-1.9517e-4f * s + 8.33218e-3f) * s - 1.6666655e-1f) * s * r + r;
    const V cosine = ((2.44383506e-5f * s - 1.38873667e-3f) * s + 4.16666468e-2f) * s * s - 0.5f * s + 1.0f;
    const M at = __builtin_convertvector(k, M) + quarter;
    V v = (at & 1) != 0 ? cosine : sine;
    v = (at & 2) != 0 ? -v : v;
    v = x != x ? x : v;
    if (quarter == 0) v = x == 0.0f ? x : v;  // -0.0 is its own sine
    bool any = false;
    for (int i = 0; i < LANES<float>; i++) any |= far[i] != 0;
    if (any)
        for (int i = 0; i < LANES<float>; i++)
            if (far[i]) v[i] = quarter ? std::cos(x[i]) : std::sin(x[i]);
    return v;
}
TF_INLINE Vec<float> sine(Vec<float> x) { return of_circle(x, 0); }
TF_INLINE Vec<float> cosine(Vec<float> x) { return of_circle(x, 1); }
TF_INLINE Vec<double> sine(Vec<double> x) {
    return lane_by_lane(x, [](double a) { return std::sin(a); });
}
TF_INLINE Vec<double> cosine(Vec<double> x) {
    return lane_by_lane(x, [](double a) { return std::cos(a); });
}

}  // namespace TF_NAMESPACE

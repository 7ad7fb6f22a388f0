// Vectors of one register, and the few functions of them that stages need.
//
// TF_BYTES is the register width of the instruction set this file is compiled for.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if TF_BYTES > 16
#include <immintrin.h>
#endif

#define TF_INLINE static inline __attribute__((always_inline))

namespace TF_NAMESPACE {

template <class T> struct Types;
template <> struct Types<float> {
    typedef float Vector __attribute__((vector_size(TF_BYTES)));
    typedef int32_t Mask __attribute__((vector_size(TF_BYTES)));
    typedef float Loose __attribute__((vector_size(TF_BYTES), aligned(4)));
    typedef float Half __attribute__((vector_size(TF_BYTES / 2)));
};
template <> struct Types<double> {
    typedef double Vector __attribute__((vector_size(TF_BYTES)));
    typedef int64_t Mask __attribute__((vector_size(TF_BYTES)));
    typedef double Loose __attribute__((vector_size(TF_BYTES), aligned(8)));
    typedef double Half __attribute__((vector_size(TF_BYTES / 2)));
};
template <class T> using Vec = typename Types<T>::Vector;
template <class T> using Mask = typename Types<T>::Mask;
template <class T> using HalfVec = typename Types<T>::Half;
// The bits of a value without its sign.
template <class T>
constexpr auto MAGNITUDE = std::numeric_limits<std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>::max();
template <class T> constexpr int LANES = TF_BYTES / sizeof(T);

template <class T> TF_INLINE Vec<T> load(const T* p) {
    return *reinterpret_cast<const typename Types<T>::Loose*>(p);
}
template <class T> TF_INLINE void store(T* p, Vec<T> v) {
    *reinterpret_cast<typename Types<T>::Loose*>(p) = v;
}
// Keeps a loaded vector in a register: compilers may else load it again for each of its uses.
template <class V> TF_INLINE V held(V v) {
#if TF_BYTES == 64
    asm("" : "+v"(v));
#elif defined(__SSE2__)
    asm("" : "+x"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
    return v;
}
// The first n values of a vector and `others` beside them, and back: nothing beyond them is touched.
#if TF_BYTES == 64
TF_INLINE Vec<float> load_some(const float* p, int64_t n, Vec<float> others) {
    return (Vec<float>)_mm512_mask_loadu_ps((__m512)others, __mmask16((1u << n) - 1), p);
}
TF_INLINE Vec<double> load_some(const double* p, int64_t n, Vec<double> others) {
    return (Vec<double>)_mm512_mask_loadu_pd((__m512d)others, __mmask8((1u << n) - 1), p);
}
TF_INLINE void store_some(float* p, Vec<float> v, int64_t n) {
    _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), (__m512)v);
}
TF_INLINE void store_some(double* p, Vec<double> v, int64_t n) {
    _mm512_mask_storeu_pd(p, __mmask8((1u << n) - 1), (__m512d)v);
}
#else
template <class T> TF_INLINE Vec<T> load_some(const T* p, int64_t n, Vec<T> others) {
    T some[LANES<T>];
    store(some, others);
    memcpy(some, p, n * sizeof(T));
    return load(some);
}
template <class T> TF_INLINE void store_some(T* p, Vec<T> v, int64_t n) { memcpy(p, &v, n * sizeof(T)); }
#endif
template <class T> TF_INLINE Vec<T> load_some(const T* p, int64_t n) { return load_some(p, n, Vec<T>{}); }
// Past the caches, whole lines at once; `p` is aligned to one. Others see it after `drain`.
#if TF_BYTES == 64
constexpr bool STREAMS = true;
TF_INLINE void stream(float* p, Vec<float> v) { _mm512_stream_ps(p, (__m512)v); }
TF_INLINE void stream(double* p, Vec<double> v) { _mm512_stream_pd(p, (__m512d)v); }
TF_INLINE void drain() { _mm_sfence(); }
#else
constexpr bool STREAMS = false;
template <class T> TF_INLINE void stream(T* p, Vec<T> v) { store(p, v); }
TF_INLINE void drain() {}
#endif
template <class T> TF_INLINE Vec<T> fill(T a) { return a - Vec<T>{}; }

// One instruction on x86; b where either is NaN.
template <class V> TF_INLINE V larger(V a, V b) { return a > b ? a : b; }
template <class V> TF_INLINE V smaller(V a, V b) { return a < b ? a : b; }
#if TF_BYTES == 64
TF_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) {
    return (Vec<float>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
}
TF_INLINE Vec<float> smaller(Vec<float> a, Vec<float> b) {
    return (Vec<float>)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
}
#elif TF_BYTES == 32
TF_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) {
    return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
}
TF_INLINE Vec<float> smaller(Vec<float> a, Vec<float> b) {
    return (Vec<float>)_mm256_min_ps((__m256)a, (__m256)b);
}
#endif

// NaN wins a maximum and a minimum, and passes a clamp.
template <class V> TF_INLINE V maximum(V a, V b) { return a != a ? a : larger(a, b); }
template <class V> TF_INLINE V minimum(V a, V b) { return a != a ? a : smaller(a, b); }
template <class V> TF_INLINE V clamp(V x, V low, V high) { return smaller(high, larger(low, x)); }

// Lanes i and i ^ BY folded onto each other, in every lane.
template <int BY, class V, class F, int... I> TF_INLINE V fold_by(V v, F f, std::integer_sequence<int, I...>) {
    return f(v, __builtin_shufflevector(v, v, (I ^ BY)...));
}
template <class T, class F> TF_INLINE T fold_lanes(Vec<T> v, F f) {
    constexpr std::make_integer_sequence<int, LANES<T>> lanes;
    if constexpr (LANES<T> > 8) v = fold_by<8>(v, f, lanes);
    if constexpr (LANES<T> > 4) v = fold_by<4>(v, f, lanes);
    if constexpr (LANES<T> > 2) v = fold_by<2>(v, f, lanes);
    return fold_by<1>(v, f, lanes)[0];
}
template <class T> TF_INLINE T sum_lanes(Vec<T> v) {
    return fold_lanes<T>(v, [](Vec<T> a, Vec<T> b) { return a + b; });
}
template <class T> TF_INLINE T max_lanes(Vec<T> v) {
    return fold_lanes<T>(v, [](Vec<T> a, Vec<T> b) { return maximum(a, b); });
}

// p * 2^n for whole n. Without an instruction for it in two factors, so that results near both ends of
// the range are right.
TF_INLINE Vec<float> scaled(Vec<float> p, Vec<float> n) {
#if TF_BYTES == 64
    return (Vec<float>)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);
#else
    typedef Vec<float> V;
    Mask<float> e = __builtin_convertvector(n, Mask<float>);
    Mask<float> half = e >> 1;
    V a = (V)((half + 127) << 23), b = (V)((e - half + 127) << 23);
    return p * a * b;
#endif
}

// exp in float32 to about one ulp: 2^n * p(r), r = x - n ln 2, |r| <= ln 2 / 2.
TF_INLINE Vec<float> exponential(Vec<float> x) {
    typedef Vec<float> V;
    V y = clamp(x, fill(-104.0f), fill(89.0f));
    V z = y * 1.44269504088896341f + 12582912.0f;  // rounds to an integer in the low bits
    V n = z - 12582912.0f;
    V r = y - n * 0.693145751953125f;
    r = r - n * 1.42860677e-6f;
    V p = fill(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return scaled(p, n);  // NaN came through everything
}
TF_INLINE Vec<double> exponential(Vec<double> x) {
    for (int i = 0; i < LANES<double>; i++) x[i] = std::exp(x[i]);
    return x;
}

template <class T> TF_INLINE Vec<T> sigmoid(Vec<T> x) {
    return T(1) / (T(1) + exponential(-x));
}

// |x|, and m with the sign of s.
template <class T> TF_INLINE Vec<T> magnitude(Vec<T> x) { return (Vec<T>)((Mask<T>)x & MAGNITUDE<T>); }
template <class T> TF_INLINE Vec<T> with_sign(Vec<T> m, Vec<T> s) {
    return (Vec<T>)((Mask<T>)magnitude<T>(m) | ((Mask<T>)s & ~MAGNITUDE<T>));
}

// tanh of |x| with the sign of x, -0.0 included: a polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
TF_INLINE Vec<float> hyperbolic(Vec<float> x) {
    typedef Vec<float> V;
    V s = x * x, m = magnitude<float>(x);
    V p = fill(-5.70498872745e-3f);
    p = p * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    V small = p * s * m + m;
    V large = 1.0f - 2.0f / (exponential(m + m) + 1.0f);
    return with_sign<float>(m < 0.625f ? small : (x != x ? x : large), x);
}
TF_INLINE Vec<double> hyperbolic(Vec<double> x) {
    for (int i = 0; i < LANES<double>; i++) x[i] = std::tanh(x[i]);
    return x;
}

// Interleave the low, or the high, halves of two vectors.
template <class V, int... I> TF_INLINE V interleave_low(V a, V b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (I / 2 + (I % 2 ? int(sizeof...(I)) : 0))...);
}
template <class V, int... I> TF_INLINE V interleave_high(V a, V b, std::integer_sequence<int, I...>) {
    constexpr int n = sizeof...(I);
    return __builtin_shufflevector(a, b, (n / 2 + I / 2 + (I % 2 ? n : 0))...);
}

// Rows become columns: log2(LANES) rounds of interleaving each row with the one half-way on.
template <class T> TF_INLINE void transpose(Vec<T> (&r)[LANES<T>]) {
    constexpr int L = LANES<T>;
    std::make_integer_sequence<int, L> lanes;
#pragma GCC unroll 4
    for (int round = 1; round < L; round *= 2) {
        Vec<T> t[L];
#pragma GCC unroll 16
        for (int i = 0; i < L / 2; i++) {
            t[2 * i] = interleave_low(r[i], r[i + L / 2], lanes);
            t[2 * i + 1] = interleave_high(r[i], r[i + L / 2], lanes);
        }
#pragma GCC unroll 16
        for (int i = 0; i < L; i++) r[i] = t[i];
    }
}

}  // namespace TF_NAMESPACE

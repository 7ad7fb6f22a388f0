// Rows of elements in storage type to and from the compute type. 16-bit types round to nearest even.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "program.h"
#include "vector.h"

namespace TF_NAMESPACE {

#if defined(__aarch64__)
typedef __fp16 Half;
#else
typedef _Float16 Half;
#endif

struct Bf16 {
    uint16_t bits;
    operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &wide, 4);
        return value;
    }
    Bf16() = default;
    explicit Bf16(float value) {
        uint32_t wide;
        memcpy(&wide, &value, 4);
        if (value != value)
            bits = uint16_t((wide >> 16) | 0x40);
        else
            bits = uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
    }
};

static inline int bytes_of(int element) { return element == TF_F64 ? 8 : element == TF_F32 ? 4 : 2; }

typedef uint16_t Narrow __attribute__((vector_size(TF_BYTES / 2)));  // 16 bits for each lane of float
typedef uint32_t Wide __attribute__((vector_size(TF_BYTES)));

// Half floats of a vector; without an instruction for it by arithmetic on their bits.
#if TF_BYTES == 64
TF_INLINE Vec<float> from_half(Narrow bits) { return (Vec<float>)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits); }
TF_INLINE Narrow to_half(Vec<float> v) {
    return (Narrow)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
}
#elif TF_BYTES == 32
TF_INLINE Vec<float> from_half(Narrow bits) { return (Vec<float>)_mm256_cvtph_ps((__m128i)bits); }
TF_INLINE Narrow to_half(Vec<float> v) { return (Narrow)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__aarch64__)
typedef Half Halves __attribute__((vector_size(TF_BYTES / 2)));
TF_INLINE Vec<float> from_half(Narrow bits) { return __builtin_convertvector((Halves)bits, Vec<float>); }
TF_INLINE Narrow to_half(Vec<float> v) { return (Narrow)__builtin_convertvector(v, Halves); }
#else
TF_INLINE Vec<float> from_half(Narrow bits) {
    const Wide wide = __builtin_convertvector(bits, Wide), magnitude = (wide & 0x7fff) << 13;
    const Vec<float> finite = (Vec<float>)magnitude * 0x1p112f;  // exponents count from 15 there, from 127 here
    const Wide value = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : (Wide)finite;
    return (Vec<float>)(value | (wide & 0x8000) << 16);
}
TF_INLINE Narrow to_half(Vec<float> v) {
    const Wide bits = (Wide)v, sign = bits & 0x80000000u, m = bits ^ sign;
    const Vec<float> tiny = (Vec<float>)m + 0.5f;  // rounds to a multiple of 2^-24, in its low bits
    const Wide small = (Wide)tiny - 0x3f000000u;
    const Wide normal = (m - 0x38000000u + 0xfff + (m >> 13 & 1)) >> 13;
    const Wide special = m > 0x7f800000u ? (m >> 13 & 0x3ff) | 0x7e00u : Wide{} + 0x7c00u;
    const Wide found = m >= 0x47800000u ? special : m < 0x38800000u ? small : normal;
    return __builtin_convertvector(found | sign >> 16, Narrow);
}
#endif

// A vector of elements, to and from the compute type.
template <class T, class E> TF_INLINE Vec<T> widened(const E* p) {
    Narrow bits;
    if constexpr (std::is_same<E, T>::value) {
        return load(p);
    } else if constexpr (sizeof(E) == 2 && sizeof(T) == 4) {
        memcpy(&bits, p, sizeof bits);
        if constexpr (std::is_same<E, Half>::value) return from_half(bits);
        return (Vec<T>)(__builtin_convertvector(bits, Wide) << 16);
    } else {
        Vec<T> v;
        for (int i = 0; i < LANES<T>; i++) v[i] = T(p[i]);
        return v;
    }
}
template <class T, class E> TF_INLINE void narrowed(Vec<T> v, E* p) {
    if constexpr (std::is_same<E, T>::value) {
        store(p, v);
    } else if constexpr (sizeof(E) == 2 && sizeof(T) == 4) {
        Narrow bits;
        if constexpr (std::is_same<E, Half>::value) {
            bits = to_half(v);
        } else {
            const Wide wide = (Wide)v, rounded = wide + 0x7fff + (wide >> 16 & 1);
            bits = __builtin_convertvector((v != v ? wide | 0x400000u : rounded) >> 16, Narrow);
        }
        memcpy(p, &bits, sizeof bits);
    } else {
        for (int i = 0; i < LANES<T>; i++) p[i] = E(v[i]);
    }
}

// Calls f with a null pointer of the storage type.
template <class F> static inline void with_element(int element, F f) {
    switch (element) {
        case TF_F32: return f(static_cast<float*>(nullptr));
        case TF_F64: return f(static_cast<double*>(nullptr));
        case TF_F16: return f(static_cast<Half*>(nullptr));
        default: return f(static_cast<Bf16*>(nullptr));
    }
}

template <class T>
static inline void load_row(int element, const void* from, int64_t at, int64_t stride, int64_t n, T* to) {
    with_element(element, [&](auto* type) {
        typedef std::remove_pointer_t<decltype(type)> E;
        const E* p = static_cast<const E*>(from) + at;
        if (std::is_same<E, T>::value && stride == 1)
            memcpy(to, p, n * sizeof(T));
        else if (stride == 1) {
            int64_t i = 0;
            for (; i + LANES<T> <= n; i += LANES<T>) store(to + i, widened<T>(p + i));
            for (; i < n; i++) to[i] = T(p[i]);
        } else {
            for (int64_t i = 0; i < n; i++) to[i] = T(p[i * stride]);
        }
    });
}

template <class T>
static inline void store_row(int element, void* to, int64_t at, int64_t stride, int64_t n, const T* from) {
    with_element(element, [&](auto* type) {
        typedef std::remove_pointer_t<decltype(type)> E;
        E* p = static_cast<E*>(to) + at;
        if (std::is_same<E, T>::value && stride == 1)
            memcpy(p, from, n * sizeof(T));
        else if (stride == 1) {
            int64_t i = 0;
            for (; i + LANES<T> <= n; i += LANES<T>) narrowed<T>(load(from + i), p + i);
            for (; i < n; i++) p[i] = E(from[i]);
        } else {
            for (int64_t i = 0; i < n; i++) p[i * stride] = E(from[i]);
        }
    });
}

}  // namespace TF_NAMESPACE

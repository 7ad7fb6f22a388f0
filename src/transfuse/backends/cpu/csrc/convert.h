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

// A vector of elements, in the compute type.
template <class T, class E> TF_INLINE Vec<T> widened(const E* p) {
    if constexpr (std::is_same<E, T>::value) {
        return load(p);
    } else {
        Vec<T> v;
        for (int i = 0; i < LANES<T>; i++) v[i] = T(p[i]);
        return v;
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
        else if (stride == 1)
            for (int64_t i = 0; i < n; i++) to[i] = T(p[i]);
        else
            for (int64_t i = 0; i < n; i++) to[i] = T(p[i * stride]);
    });
}

template <class T>
static inline void store_row(int element, void* to, int64_t at, int64_t stride, int64_t n, const T* from) {
    with_element(element, [&](auto* type) {
        typedef std::remove_pointer_t<decltype(type)> E;
        E* p = static_cast<E*>(to) + at;
        if (std::is_same<E, T>::value && stride == 1)
            memcpy(p, from, n * sizeof(T));
        else if (stride == 1)
            for (int64_t i = 0; i < n; i++) p[i] = E(from[i]);
        else
            for (int64_t i = 0; i < n; i++) p[i * stride] = E(from[i]);
    });
}

}  // namespace TF_NAMESPACE

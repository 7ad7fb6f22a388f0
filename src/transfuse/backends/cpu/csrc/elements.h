// The maths of steps that see one element at a time, on vectors.
#pragma once
#include <algorithm>
#include <type_traits>

#include "functions.h"
#include "program.h"
#include "vector.h"

namespace TF_NAMESPACE {

// The maths of an element step; `line(i)` gives its i-th operand for the lanes of x.
template <int OP, class T, class F> static Vec<T> element_step(const transfuse_step& s, Vec<T> x, F line) {
    if constexpr (OP == TF_ADD) return x + line(0);
    if constexpr (OP == TF_SCALE) return x * line(0);
    if constexpr (OP == TF_CLAMP) return clamp(x, fill(T(s.f0)), fill(T(s.f1)));
    if constexpr (OP == TF_SIGMOID) return sigmoid<T>(x);
    if constexpr (OP == TF_TANH) return hyperbolic(x);
    if constexpr (OP == TF_EXP_APPLY) return x * line(1);
    if constexpr (OP == TF_MAX_APPLY) return exponential(x - line(0)) * line(1);
    return (x - line(0)) * line(1) + line(2);
}

template <class F> static void with_element_op(int op, F f) {
    switch (op) {
        case TF_ADD: return f(std::integral_constant<int, TF_ADD>());
        case TF_SCALE: return f(std::integral_constant<int, TF_SCALE>());
        case TF_CLAMP: return f(std::integral_constant<int, TF_CLAMP>());
        case TF_SIGMOID: return f(std::integral_constant<int, TF_SIGMOID>());
        case TF_TANH: return f(std::integral_constant<int, TF_TANH>());
        case TF_EXP_APPLY: return f(std::integral_constant<int, TF_EXP_APPLY>());
        case TF_MAX_APPLY: return f(std::integral_constant<int, TF_MAX_APPLY>());
        default: return f(std::integral_constant<int, TF_BATCH_APPLY>());
    }
}

// Values that lie side by side, as vectors; the last one may be filled up.
template <class T, class F> static void each_in_row(T* v, int64_t n, F f) {
    int64_t i = 0;
    for (; i + LANES<T> <= n; i += LANES<T>) store(v + i, f(load(v + i)));
    if (i < n) {
        T rest[LANES<T>] = {};
        std::copy(v + i, v + n, rest);
        store(rest, f(load(rest)));
        std::copy(rest, rest + (n - i), v + i);
    }
}

}  // namespace TF_NAMESPACE

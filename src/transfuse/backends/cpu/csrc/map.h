// Maps: pointwise expressions as code over registers, run over strips that stay in the first-level cache.
//
// Each instruction works through a whole strip before the next one begins, so that to find out what it
// is costs little. A source is a strip (the running value, an operand by channel, a register) or a
// number, and each instruction is compiled for every mixture of the two.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "functions.h"
#include "program.h"

namespace TF_NAMESPACE {

constexpr int STRIP = 32;   // vectors of a strip
constexpr int ROOM = 512;   // vectors of all registers: many of them make short strips

// A source of an instruction: a strip, or where there is none a number.
template <class T> struct From {
    const T* strip;
    T number;
};

template <class T> TF_INLINE Vec<T> truth(Mask<T> m) { return m ? fill(T(1)) : Vec<T>{}; }

// The primitives on vectors; true and false are 1 and 0.
template <int P, class T> TF_INLINE Vec<T> primitive(Vec<T> a, Vec<T> b, Vec<T> c) {
    if constexpr (P == TF_P_ADD) return a + b;
    else if constexpr (P == TF_P_SUB) return a - b;
    else if constexpr (P == TF_P_MUL) return a * b;
    else if constexpr (P == TF_P_DIV) return a / b;
    else if constexpr (P == TF_P_MINIMUM) return minimum(a, b);
    else if constexpr (P == TF_P_MAXIMUM) return maximum(a, b);
    else if constexpr (P == TF_P_CLAMP) return minimum(maximum(a, b), c);
    else if constexpr (P == TF_P_WHERE) return a != T(0) ? b : c;
    else if constexpr (P == TF_P_LT) return truth<T>(a < b);
    else if constexpr (P == TF_P_LE) return truth<T>(a <= b);
    else if constexpr (P == TF_P_EQ) return truth<T>(a == b);
    else if constexpr (P == TF_P_BOTH) return a * b;
    else if constexpr (P == TF_P_EITHER) return larger(a, b);
    else if constexpr (P == TF_P_NO) return T(1) - a;
    else if constexpr (P == TF_P_NEG) return -a;
    else if constexpr (P == TF_P_ABS) return magnitude<T>(a);
    else if constexpr (P == TF_P_FLOOR) return whole_below<T>(a);
    else if constexpr (P == TF_P_SQRT) return root(a);
    else if constexpr (P == TF_P_RSQRT) return T(1) / root(a);
    else if constexpr (P == TF_P_EXP) return exponential(a);
    else if constexpr (P == TF_P_EXPM1) return exponential_m1(a);
    else if constexpr (P == TF_P_LOG) return logarithm(a);
    else if constexpr (P == TF_P_LOG1P) return logarithm_1p(a);
    else if constexpr (P == TF_P_SIN) return sine(a);
    else if constexpr (P == TF_P_COS) return cosine(a);
    else if constexpr (P == TF_P_TANH) return hyperbolic(a);
    else if constexpr (P == TF_P_SIGMOID) return sigmoid<T>(a);
    else if constexpr (P == TF_P_ERF) return error_function(a);
    else static_assert(P != P, "a primitive that no line here computes");
}

constexpr int arity(int p) { return p == TF_P_WHERE || p == TF_P_CLAMP ? 3 : p < TF_P_NO ? 2 : 1; }

// One instruction over a strip; bit i of MASK says that source i is a number.
template <class T, int P, int MASK> static void instruction(T* to, const From<T>* from, int64_t count) {
    const auto source = [&](auto which, int64_t i) -> Vec<T> {
        constexpr int k = decltype(which)::value;
        if constexpr (k >= arity(P)) return Vec<T>{};
        else if constexpr (MASK >> k & 1) return fill(from[k].number);
        else return load(from[k].strip + i);
    };
    for (int64_t i = 0; i < count; i += LANES<T>) {
        const Vec<T> a = source(std::integral_constant<int, 0>(), i), b = source(std::integral_constant<int, 1>(), i);
        store(to + i, primitive<P, T>(a, b, source(std::integral_constant<int, 2>(), i)));
    }
}

// WHERE of a comparison, as one instruction: sources 0 and 1 are compared, 2 and 3 chosen from.
template <class T, int P, int MASK> static void selection(T* to, const From<T>* from, int64_t count) {
    const auto source = [&](auto which, int64_t i) -> Vec<T> {
        constexpr int k = decltype(which)::value;
        if constexpr (MASK >> k & 1) return fill(from[k].number);
        else return load(from[k].strip + i);
    };
    for (int64_t i = 0; i < count; i += LANES<T>) {
        const Vec<T> a = source(std::integral_constant<int, 0>(), i), b = source(std::integral_constant<int, 1>(), i);
        const Vec<T> c = source(std::integral_constant<int, 2>(), i), d = source(std::integral_constant<int, 3>(), i);
        const Mask<T> is = P == TF_P_LT ? a < b : P == TF_P_LE ? a <= b : a == b;
        store(to + i, is ? c : d);
    }
}

// Which sources matter: masks that differ only in others are one function.
constexpr int relevant(int p, int mask) { return mask & ((1 << arity(p)) - 1); }
template <class T> using Instruction = void (*)(T*, const From<T>*, int64_t);
template <class T, int... I> static Instruction<T> instruction_of(int at, std::integer_sequence<int, I...>) {
    static constexpr Instruction<T> ALL[] = {instruction<T, I / 8, relevant(I / 8, I % 8)>...};
    return ALL[at];
}
template <class T, int... I> static Instruction<T> selection_of(int at, std::integer_sequence<int, I...>) {
    static constexpr Instruction<T> ALL[] = {selection<T, TF_P_LT + I / 16, I % 16>...};
    return ALL[at];
}
static_assert(TF_P_LE == TF_P_LT + 1 && TF_P_EQ == TF_P_LT + 2, "comparisons follow one another");

// Code made ready to run.
template <class T> class Map {
  public:
    explicit Map(const transfuse_code* c) : code(c) {
        for (int i = 0; c && i < c->numbers_count; i++) numbers.push_back(T(c->numbers[i]));
        std::vector<int> compared(c ? size_t(c->length) : 0, -1);  // what is chosen by, or -1
        for (int i = 0; c && i < c->length; i++) {
            const int chooses = compares(i) ? chosen_by(i) : 0;
            if (chooses)
                compared[size_t(chooses)] = i;
            else
                list.push_back(made(i, compared[size_t(i)]));
        }
        // What a single instruction reads and writes need not stay in a cache.
        const int fewest = list.size() == 1 ? 1 : ROOM / STRIP;
        strip = ROOM / std::max(fewest, c ? c->registers_count : 0) * LANES<T>;
    }
    explicit operator bool() const { return code; }
    int operands() const { return code ? code->operands_count : 0; }

    // v becomes its image: `count` values. Operands are as many values, or a number each.
    void operator()(T* v, int64_t count, const From<T>* operands) const {
        const int64_t whole = count / LANES<T> * LANES<T>;
        for (int64_t i = 0; i < whole; i += strip) run(v + i, i, std::min(strip, whole - i), operands);
        if (whole == count) return;
        // What is left is no whole vector: it is copied to one, and back.
        From<T> last[UINT8_MAX];
        T rest[LANES<T>] = {}, copies[UINT8_MAX][LANES<T>];
        const auto copy = [&](const T* from, T* to) { std::copy(from + whole, from + count, to); };
        for (int k = 0; k < code->operands_count; k++) {
            last[k] = operands[k];
            if (!operands[k].strip) continue;
            std::fill(copies[k], copies[k] + LANES<T>, T(0));
            copy(operands[k].strip, copies[k]);
            last[k].strip = copies[k];
        }
        copy(v, rest);
        run(rest, 0, LANES<T>, last);
        std::copy(rest, rest + (count - whole), v + whole);
    }

  private:
    // An instruction, or where `selects` one that chooses by a comparison.
    struct Made {
        bool selects;
        int primitive, to, count, from[4];
    };
    const transfuse_code* code;
    std::vector<T> numbers;
    std::vector<Made> list;
    int64_t strip;

    bool compares(int i) const {
        const int p = code->instructions[i].primitive;
        return p >= TF_P_LT && p <= TF_P_EQ && code->instructions[i].to;
    }

    // The instruction that alone reads comparison i, to choose by it, where its sources are still there; 0 for none.
    int chosen_by(int i) const {
        const transfuse_instruction& compared = code->instructions[i];
        int found = 0;
        for (int k = i + 1; k < code->length; k++) {
            const transfuse_instruction& each = code->instructions[k];
            const int count = arity(each.primitive);
            const auto reads = std::count(each.from, each.from + count, compared.to);
            if (reads && (found || reads > 1 || each.primitive != TF_P_WHERE || each.from[0] != compared.to)) return 0;
            if (reads) found = k;
            if (each.to == compared.to) break;
            if (!found && std::count(compared.from, compared.from + 2, each.to)) return 0;
        }
        return found;
    }

    // Instruction i, which chooses by comparison `compared` if that is one.
    Made made(int i, int compared) const {
        const transfuse_instruction& each = code->instructions[i];
        if (compared < 0)
            return {false, each.primitive, each.to, arity(each.primitive), {each.from[0], each.from[1], each.from[2], 0}};
        const transfuse_instruction& by = code->instructions[compared];
        return {true, by.primitive, each.to, 4, {by.from[0], by.from[1], each.from[1], each.from[2]}};
    }

    // One strip of whole vectors; the operands' lie from `at` on.
    void run(T* v, int64_t at, int64_t count, const From<T>* operands) const {
        alignas(64) T registers[ROOM * LANES<T>];
        const int first_operand = 1 + code->numbers_count, first_register = first_operand + code->operands_count;
        const auto place = [&](int k) { return k ? registers + (k - first_register) * strip : v; };
        for (const Made& each : list) {
            From<T> from[4] = {};
            int mask = 0;
            for (int k = 0; k < each.count; k++) {
                const int s = each.from[k];
                if (s && s < first_operand) {
                    from[k] = {nullptr, numbers[s - 1]};
                } else if (s && s < first_register) {
                    from[k] = operands[s - first_operand];
                    if (from[k].strip) from[k].strip += at;
                } else {
                    from[k] = {place(s), T(0)};
                }
                mask |= int(!from[k].strip) << k;
            }
            constexpr std::make_integer_sequence<int, 8 * TF_PRIMITIVES> all;
            constexpr std::make_integer_sequence<int, 3 * 16> selections;
            const auto run = each.selects ? selection_of<T>((each.primitive - TF_P_LT) * 16 + mask, selections)
                                          : instruction_of<T>(each.primitive * 8 + mask, all);
            run(place(each.to), from, count);
        }
    }
};
static_assert(TF_REGISTERS <= ROOM, "a strip is one vector at least");

}  // namespace TF_NAMESPACE

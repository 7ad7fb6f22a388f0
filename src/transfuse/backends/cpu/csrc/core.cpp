// Which engine runs, and errors as codes with a message.
#include "core.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

#include "decide.h"
#include "engine.h"
#include "failure.h"
#include "validate.h"

#if defined(__x86_64__)
namespace avx512 { extern const transfuse_engine ENGINE; }
namespace avx2 { extern const transfuse_engine ENGINE; }
namespace sse2 { extern const transfuse_engine ENGINE; }
#else
namespace baseline { extern const transfuse_engine ENGINE; }
#endif

namespace {

struct Choice {
    const char* name;
    const transfuse_engine* engine;
};

// What this machine runs, best first.
struct Choices {
    Choice list[3];
    size_t count = 0;
    char names[32] = "";  // separated by spaces

    Choices() noexcept {
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
            add("avx512", &avx512::ENGINE);
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) add("avx2", &avx2::ENGINE);
        add("sse2", &sse2::ENGINE);
#elif defined(__aarch64__)
        add("neon", &baseline::ENGINE);
#else
        add("generic", &baseline::ENGINE);
#endif
    }
    void add(const char* name, const transfuse_engine* engine) noexcept {
        if (count) std::strcat(names, " ");
        std::strcat(names, name);
        list[count++] = {name, engine};
    }
};

const Choices& choices() noexcept {
    static const Choices found;
    return found;
}

std::atomic<size_t> chosen{0};
thread_local char message[1024] = "";

const Choice& choice() noexcept { return choices().list[chosen]; }

// OpenMP ends the process where it cannot start as many threads as it is told to; those that it would use by
// itself, one for each processor and a few more are safe.
int startable(int32_t threads) {
    if (threads < 1) refuse("threads must be at least 1, but got ", threads);
    if (threads <= 64) return threads;  // without asking the system, which takes its time
    return std::min(threads, std::max({64, omp_get_num_procs(), omp_get_max_threads()}));
}

// NaN and Inf have every bit of the exponent set. Looked for in blocks, which compilers take by vectors.
template <class Bits> bool finite(const void* values, int64_t count, Bits exponent) {
    const char* at = static_cast<const char*>(values);
    for (int64_t some; count > 0; count -= some, at += some * int64_t(sizeof(Bits))) {
        some = std::min<int64_t>(count, 1024);
        Bits found = 0;
        for (int64_t i = 0; i < some; i++) {
            Bits value;
            std::memcpy(&value, at + i * int64_t(sizeof value), sizeof value);
            found |= Bits((value & exponent) == exponent);
        }
        if (found) return false;
    }
    return true;
}

bool finite(const void* values, int64_t count, int32_t element) {
    switch (element) {
        case TF_F32: return finite<uint32_t>(values, count, 0x7f800000);
        case TF_F64: return finite<uint64_t>(values, count, 0x7ff0000000000000);
        case TF_F16: return finite<uint16_t>(values, count, 0x7c00);
        default: return finite<uint16_t>(values, count, 0x7f80);
    }
}

// The lines of transfuse_abi(), written once.
struct Abi {
    char lines[4096] = "";
    size_t at = 0;

    Abi() noexcept {
        add("abi %d\nelements fp32 fp64 fp16 bf16\noperations", TRANSFUSE_ABI);
        static_assert(TF_F32 == 0 && TF_F64 == 1 && TF_F16 == 2 && TF_BF16 == 3 && TF_ELEMENTS == 4, "as named");
#define NAME(op) add(" %s", #op);
        TRANSFUSE_EACH_OP(NAME)
        add("\ncuts store again decide hold");
        static_assert(TF_STORE == 0 && TF_AGAIN == 1 && TF_DECIDE == 2 && TF_HOLD == 3, "as named");
        add("\nprimitives");
        TRANSFUSE_EACH_PRIMITIVE(NAME)
        add("\nkinds");
        TRANSFUSE_EACH_KIND(NAME)
        add("\nfoldings");
        TRANSFUSE_EACH_FOLDING(NAME)
#undef NAME
#define FIELD(of, field) add(" %s@%zu", #field, offsetof(transfuse_##of, field))
        add("\ninstruction %zu:", sizeof(transfuse_instruction));
        FIELD(instruction, primitive), FIELD(instruction, to), FIELD(instruction, from);
        add("\ncode %zu:", sizeof(transfuse_code));
        FIELD(code, numbers_count), FIELD(code, operands_count), FIELD(code, registers_count), FIELD(code, length);
        FIELD(code, numbers), FIELD(code, instructions);
        add("\noperand %zu:", sizeof(transfuse_operand));
        FIELD(operand, element), FIELD(operand, data), FIELD(operand, strides);
        add("\nmap %zu:", sizeof(transfuse_map));
        FIELD(map, code), FIELD(map, operands);
        add("\nstep %zu:", sizeof(transfuse_step));
        FIELD(step, op), FIELD(step, i0), FIELD(step, kernel), FIELD(step, stride), FIELD(step, padding);
        FIELD(step, f0), FIELD(step, f1), FIELD(step, t0), FIELD(step, t1);
        FIELD(step, t2), FIELD(step, t3), FIELD(step, moments), FIELD(step, map);
        add("\nprogram %zu:", sizeof(transfuse_program));
        FIELD(program, element), FIELD(program, input_element), FIELD(program, output_element);
        FIELD(program, operands), FIELD(program, careful);
        FIELD(program, batch), FIELD(program, in_channels), FIELD(program, out_channels), FIELD(program, groups), FIELD(program, spatial), FIELD(program, kernel);
        FIELD(program, stride), FIELD(program, padding), FIELD(program, dilation);
        FIELD(program, output_padding), FIELD(program, before_count), FIELD(program, before);
        FIELD(program, steps_count), FIELD(program, steps), FIELD(program, input);
        FIELD(program, input_strides), FIELD(program, weights), FIELD(program, output);
        FIELD(program, output_strides), FIELD(program, weight_scale);
        add("\nview %zu:", sizeof(transfuse_view));
        FIELD(view, element), FIELD(view, data), FIELD(view, strides);
        add("\nsweep %zu:", sizeof(transfuse_sweep));
        FIELD(sweep, kind), FIELD(sweep, folding), FIELD(sweep, kept), FIELD(sweep, folded), FIELD(sweep, across), FIELD(sweep, joined);
        FIELD(sweep, sizes), FIELD(sweep, values_count), FIELD(sweep, others_count), FIELD(sweep, values);
        FIELD(sweep, others), FIELD(sweep, outs), FIELD(sweep, before), FIELD(sweep, after), FIELD(sweep, inputs);
        FIELD(sweep, kernel), FIELD(sweep, stride), FIELD(sweep, padding), FIELD(sweep, dilation);
        FIELD(sweep, adaptive), FIELD(sweep, counts_padding), FIELD(sweep, divisor);
        add("\nwinners %zu:", sizeof(transfuse_winners));
        FIELD(winners, element), FIELD(winners, batch), FIELD(winners, in_channels), FIELD(winners, out_channels), FIELD(winners, groups);
        FIELD(winners, spatial), FIELD(winners, kernel), FIELD(winners, stride), FIELD(winners, padding), FIELD(winners, dilation);
        FIELD(winners, outputs), FIELD(winners, windows), FIELD(winners, window), FIELD(winners, window_stride), FIELD(winners, window_padding);
        FIELD(winners, window_dilation), FIELD(winners, gradient), FIELD(winners, values), FIELD(winners, bias), FIELD(winners, input);
        FIELD(winners, weights), FIELD(winners, by_input), FIELD(winners, by_weights);
#undef FIELD
    }
    template <class... V> void add(const char* format, V... values) noexcept {
        at += std::snprintf(lines + at, sizeof lines - at, format, values...);
        at = std::min(at, sizeof lines - 1);
    }
};

}  // namespace

int transfuse_failed(const char* reason) noexcept {
    std::snprintf(message, sizeof message, "%s", reason);
    return 1;
}

const char* transfuse_message(void) { return message; }

const char* transfuse_abi(void) {
    static const Abi abi;
    return abi.lines;
}

const char* transfuse_isa(void) { return choice().name; }

const char* transfuse_isas(void) { return choices().names; }

int transfuse_use_isa(const char* name) {
    return guarded([&] {
        if (!name || !*name) name = choices().list[0].name;
        for (size_t i = 0; i < choices().count; i++)
            if (!std::strcmp(choices().list[i].name, name)) {
                chosen = i;
                return;
            }
        refuse("this machine does not run ", std::string(name), "; it runs ", choices().names);
    });
}

int64_t transfuse_packed_bytes(const transfuse_program* program) {
    int64_t bytes = -1;
    guarded([&] {
        validate(program);
        bytes = choice().engine->packed_bytes(*program);
    });
    return bytes;
}

int transfuse_copies(const transfuse_program* program, double* times) {
    return guarded([&] {
        validate(program);
        if (!times) refuse("times is a null pointer");
        times[0] = times[1] = 1;
        if (program->batch) choice().engine->copies(*program, times);
    });
}

int transfuse_pack(const transfuse_program* program, const void* weights, const int64_t* strides, int32_t threads, void* to) {
    return guarded([&] {
        validate_pack(program, weights, strides, to);
        choice().engine->pack(*program, weights, strides, startable(threads), to);
    });
}

int transfuse_digest(const void* data, int64_t bytes, int32_t threads, uint64_t* found) {
    return guarded([&] {
        validate_values(data, bytes, TF_F32);
        if (!found) refuse("found is a null pointer");
        choice().engine->digest(data, bytes, startable(threads), found);
    });
}

int transfuse_finite(const void* values, int64_t count, int32_t element) {
    int all = -1;
    guarded([&] {
        validate_values(values, count, element);
        all = finite(values, count, element);
    });
    return all;
}

int transfuse_decide(const transfuse_program* program, int32_t* cuts) {
    return guarded([&] {
        const std::vector<int32_t> found = decided(program);
        if (!cuts && !found.empty()) refuse("cuts is a null pointer");
        std::copy(found.begin(), found.end(), cuts);
    });
}

int transfuse_run(const transfuse_program* program, int32_t threads) {
    return guarded([&] {
        validate_run(program);
        const int count = startable(threads);
        if (program->batch) choice().engine->run(Settled(*program).program, count, nullptr);
    });
}

int transfuse_run_timed(const transfuse_program* program, int32_t threads, double* seconds) {
    return guarded([&] {
        validate_run(program);
        if (!seconds) refuse("seconds is a null pointer");
        const int count = startable(threads);
        if (program->batch) choice().engine->run(Settled(*program).program, count, seconds);
    });
}

int transfuse_run_unless_changed(const transfuse_program* program, int32_t threads, const void* data,
                                 int64_t bytes, const uint64_t* digest) {
    bool changed = false;
    const int failed = guarded([&] {
        validate_run(program);
        validate_values(data, bytes, TF_F32);
        if (!digest) refuse("digest is a null pointer");
        const int count = startable(threads);
        uint64_t found[2];
        choice().engine->digest(data, bytes, count, found);
        changed = found[0] != digest[0] || found[1] != digest[1];
        if (!changed && program->batch) choice().engine->run(Settled(*program).program, count, nullptr);
    });
    return failed ? failed : changed ? 2 : 0;
}

int transfuse_sweep_run(const transfuse_sweep* sweep, int32_t threads) {
    return guarded([&] {
        validate_sweep(sweep);
        choice().engine->sweep(*sweep, startable(threads));
    });
}

int transfuse_winners_run(const transfuse_winners* winners, int32_t threads) {
    return guarded([&] {
        validate_winners(winners);
        choice().engine->winners(*winners, startable(threads));
    });
}

// Which engine runs, and errors as codes with a message.
#include "core.h"

#include <cstring>
#include <string>
#include <vector>

#include "engine.h"
#include "failure.h"

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
const std::vector<Choice>& choices() {
    static const std::vector<Choice> found = [] {
        std::vector<Choice> list;
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
            list.push_back({"avx512", &avx512::ENGINE});
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            list.push_back({"avx2", &avx2::ENGINE});
        list.push_back({"sse2", &sse2::ENGINE});
#elif defined(__aarch64__)
        list.push_back({"neon", &baseline::ENGINE});
#else
        list.push_back({"generic", &baseline::ENGINE});
#endif
        return list;
    }();
    return found;
}

// NaN and Inf have every bit of the exponent set.
template <class Bits> bool finite(const void* values, int64_t count, Bits exponent) {
    for (int64_t i = 0; i < count; i++) {
        Bits value;
        std::memcpy(&value, static_cast<const Bits*>(values) + i, sizeof value);
        if ((value & exponent) == exponent) return false;
    }
    return true;
}

size_t chosen = 0;
thread_local std::string message;

}  // namespace

int transfuse_failed(const std::string& reason) {
    message = reason;
    return 1;
}

const char* transfuse_message(void) { return message.c_str(); }

const char* transfuse_isa(void) { return choices()[chosen].name; }

const char* transfuse_isas(void) {
    static const std::string names = [] {
        std::string all;
        for (const Choice& choice : choices()) all += (all.empty() ? "" : " ") + std::string(choice.name);
        return all;
    }();
    return names.c_str();
}

int transfuse_use_isa(const char* name) {
    if (!name || !*name) {
        chosen = 0;
        return 0;
    }
    for (size_t i = 0; i < choices().size(); i++)
        if (!strcmp(choices()[i].name, name)) {
            chosen = i;
            return 0;
        }
    return transfuse_failed("this machine does not run " + std::string(name) + "; it runs " + transfuse_isas());
}

int64_t transfuse_packed_bytes(const transfuse_program* program) {
    return choices()[chosen].engine->packed_bytes(*program);
}

int transfuse_pack(const transfuse_program* program, const void* weights, const int64_t* strides, void* to) {
    return guarded([&] { choices()[chosen].engine->pack(*program, weights, strides, to); });
}

int transfuse_digest(const void* data, int64_t bytes, int32_t threads, uint64_t* found) {
    return guarded([&] { choices()[chosen].engine->digest(data, bytes, threads, found); });
}

int transfuse_finite(const void* values, int64_t count, int32_t element) {
    switch (element) {
        case TF_F32: return finite<uint32_t>(values, count, 0x7f800000);
        case TF_F64: return finite<uint64_t>(values, count, 0x7ff0000000000000);
        case TF_F16: return finite<uint16_t>(values, count, 0x7c00);
        default: return finite<uint16_t>(values, count, 0x7f80);
    }
}

int transfuse_run(const transfuse_program* program, int32_t threads) {
    return guarded([&] { choices()[chosen].engine->run(*program, threads); });
}

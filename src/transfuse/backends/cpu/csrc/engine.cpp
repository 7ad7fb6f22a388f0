// What the engine of one instruction set offers: compiled once for each.
#include "engine.h"

#include <algorithm>

#include "copies.h"
#include "digest.h"
#include "flat.h"
#include "segments.h"
#include "sideways.h"
#include "weights.h"

namespace TF_NAMESPACE {

// Calls f with a zero of the type that a program computes in.
template <class F> static auto as_computed(const transfuse_program& p, F f) {
    return p.element == TF_F64 ? f(double()) : f(float());
}

static void run(const transfuse_program& program, int threads, double* seconds) {
    as_computed(program, [&](auto type) {
        typedef decltype(type) T;
        const Sideways<T> sideways(program);
        Engine<T>(flattened(sideways.program), sideways.turned, threads, seconds).run();
    });
}

// Weights for samples side by side may lie in another order: one element more tells them from others.
static int64_t packed_bytes(const transfuse_program& program) {
    return as_computed(program, [&](auto type) {
        typedef decltype(type) T;
        const Sideways<T> sideways(program);
        return (Packing<T>(sideways.program).size + sideways.turned) * int64_t(sizeof(T));
    });
}

static void pack_weights(const transfuse_program& program, const void* weights, const int64_t* strides, int threads,
                         void* to) {
    as_computed(program, [&](auto type) {
        typedef decltype(type) T;
        const Sideways<T> sideways(program);
        int64_t steps[5];
        std::copy(strides, strides + 5, steps);
        if (sideways.turned) Sideways<T>::turn_weights(steps);
        pack(sideways.program, weights, steps, threads, static_cast<T*>(to));
    });
}

static void copies(const transfuse_program& program, double* times) {
    as_computed(program, [&](auto type) {
        const Sideways<decltype(type)> sideways(program);
        times[0] = copies_of<decltype(type)>(sideways.program, sideways.turned);
        times[1] = reads_in_place<decltype(type)>(sideways.program, sideways.turned) ? 0 : times[0];
    });
}

void sweep(const transfuse_sweep& s, int threads);  // sweeps.cpp
void winners(const transfuse_winners& w, int threads);  // winners.cpp

extern const transfuse_engine ENGINE;
const transfuse_engine ENGINE = {run, packed_bytes, pack_weights, copies, digest, sweep, winners};

}  // namespace TF_NAMESPACE

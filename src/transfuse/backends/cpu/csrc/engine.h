// What each instruction set's engine offers.
#pragma once
#include <cstdint>

#include "program.h"
#include "sweep.h"
#include "winners.h"

struct transfuse_engine {
    void (*run)(const transfuse_program&, int threads, double* seconds);  // of each pass, or null
    int64_t (*packed_bytes)(const transfuse_program&);
    void (*pack)(const transfuse_program&, const void* weights, const int64_t* strides, int threads, void* to);
    void (*copies)(const transfuse_program&, double* times);
    void (*digest)(const void* data, int64_t bytes, int threads, uint64_t* found);
    void (*sweep)(const transfuse_sweep&, int threads);
    void (*winners)(const transfuse_winners&, int threads);
};

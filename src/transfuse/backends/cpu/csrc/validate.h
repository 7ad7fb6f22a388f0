// What comes in from outside is checked once, here, before anything is computed from it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "program.h"
#include "sweep.h"
#include "winners.h"

constexpr int64_t LARGEST = INT32_MAX;        // of a stride, padding or dilation, as in torch
constexpr int64_t FARTHEST = int64_t(1) << 33;  // of an output padding: of what two paddings may come to
constexpr int64_t MOST = int64_t(1) << 48;    // elements of a tensor: no offset in bytes leaves int64
constexpr int64_t WIDEST = int64_t(1) << 62;  // of a window: two paddings and an axis stay in int64

// How many elements dims make; more than MOST are refused, also where another size is 0.
int64_t elements(const char* name, const int64_t* dims, size_t count);

// The values between two steps.
struct Values {
    int64_t batch, channels, extents[3];
    int64_t positions() const { return extents[0] * extents[1] * extents[2]; }
    int64_t count() const { return batch * channels * positions(); }
};

// Sizes, steps and their order. No address is looked at. Gives the values that the convolution reads, those
// before each step, and those after the last.
std::vector<Values> validate(const transfuse_program* program);

// A program as `transfuse_run` takes it: `validate`, its addresses and strides.
void validate_run(const transfuse_program* program);

// Weights as `transfuse_pack` takes them.
void validate_pack(const transfuse_program* program, const void* weights, const int64_t* strides, const void* to);

// Values of an element type, one after another.
void validate_values(const void* values, int64_t count, int32_t element);

// A sweep as `transfuse_sweep_run` takes it.
void validate_sweep(const transfuse_sweep* sweep);

// Gradients behind max windows as `transfuse_winners_run` takes them.
void validate_winners(const transfuse_winners* winners);

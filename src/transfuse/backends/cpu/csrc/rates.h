// Written by `make generate` from the rates of a CPU in plan.py.
#pragma once

// By which decide.cpp chooses between storing values and computing them again.
struct Rates {
    double bandwidth;  // bytes per second
    double flops[4];   // per second, by element type
    double on_chip;    // bytes that one tile can hold
    double per_value;  // flops' time that a convolution's value takes beside its products
    double special;    // special functions per second
    double per_instruction;  // flops' time of any other instruction of a map, for a value
};
constexpr Rates RATES = {20000000000.0, {177000000000.0, 88000000000.0, 177000000000.0, 177000000000.0}, 512000, 64, 4000000000.0, 8};

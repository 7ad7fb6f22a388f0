// What becomes of the values at a cut that leaves it open, by the rates of this kind of machine.
#pragma once
#include <cstdint>
#include <vector>

#include "program.h"

// As transfuse_decide gives them.
std::vector<int32_t> decided(const transfuse_program* program);

// A program as the engine runs it, which decides nothing.
struct Settled {
    transfuse_program program;

    explicit Settled(const transfuse_program& given);
    Settled(const Settled&) = delete;

  private:
    std::vector<transfuse_step> steps;
};

// Samples side by side: where rows are short, those of many samples make long ones.
#pragma once
#include <algorithm>
#include <vector>

#include "before.h"
#include "program.h"
#include "weights.h"

namespace TF_NAMESPACE {

constexpr int64_t SHORT_ROW = 2 + TF_ROWS / 3;  // positions: fewer leave the microkernel waiting for weights

constexpr int64_t MANY_PRODUCTS = 128;          // of one output: what it costs to turn that is little beside them
constexpr int64_t MANY_USES = 64;               // likewise of one input

// Whether a program runs so: by its sizes and steps alone, since weights are packed for it before tensors are known.
// No step may tell samples from positions, and one axis must be free. A kernel of one tap has long rows as it is.
template <class T> static bool lies_sideways(const transfuse_program& p) {
    if (pool_of(p) || p.spatial[0] != 1 || p.kernel[0] != 1 || p.padding[0] || p.output_padding[0]) return false;
    for (int i = 0; i < p.steps_count; i++)
        if (p.steps[i].op > TF_SUM) return false;
    int64_t products = p.in_channels / p.groups;
    for (int a = 1; a < 3; a++) products *= std::min(p.spatial[a], (p.kernel[a] + p.stride[a] - 1) / p.stride[a]);
    const int64_t taps = p.kernel[1] * p.kernel[2], uses = p.out_channels / p.groups * taps;
    const bool many = products >= MANY_PRODUCTS && uses >= MANY_USES && taps > 1;
    return p.spatial[2] < SHORT_ROW && p.batch > p.spatial[2] && many && !is_depthwise<T>(p);
}

// The same program with its samples along the width: height becomes depth, width height.
template <class T> class Sideways {
  public:
    transfuse_program program;
    const bool turned;

    explicit Sideways(const transfuse_program& p) : program(p), turned(lies_sideways<T>(p)) {
        if (!turned) return;
        program.batch = 1;
        turn(program.spatial, p.batch);
        turn(program.kernel, 1), turn(program.stride, 1), turn(program.dilation, 1);
        turn(program.padding, 0), turn(program.output_padding, 0);
        turn_strides(program.input_strides), turn_strides(program.output_strides);
        for (int i = 0; i < p.before_count; i++) turn_operands(p.before[i]);
        for (int i = 0; i < p.steps_count; i++) turn_operands(p.steps[i]);
        for (size_t i = 0; i < steps.size(); i++)
            if (steps[i].op == TF_MAP) maps[i].operands = operands[i].data(), steps[i].map = &maps[i];
        program.before = steps.data();
        program.steps = steps.data() + p.before_count;
    }
    Sideways(const Sideways&) = delete;

    // The strides of weights: input channel, output channel, taps.
    static void turn_weights(int64_t* strides) { turn(strides + 2, 0); }

  private:
    std::vector<transfuse_step> steps;  // those before the convolution, too
    std::vector<transfuse_map> maps;
    std::vector<std::vector<transfuse_operand>> operands;  // by step

    static void turn(int64_t* axes, int64_t last) {
        axes[0] = axes[1];
        axes[1] = axes[2];
        axes[2] = last;
    }
    static void turn_strides(int64_t* strides) {
        turn(strides + 2, strides[0]);
        strides[0] = 0;
    }
    void turn_operands(const transfuse_step& step) {
        steps.push_back(step);
        maps.emplace_back();
        operands.emplace_back();
        if (step.op != TF_MAP) return;
        maps.back() = *step.map;
        operands.back().assign(step.map->operands, step.map->operands + step.map->code.operands_count);
        for (transfuse_operand& each : operands.back()) turn_strides(each.strides);
    }
};

}  // namespace TF_NAMESPACE

// Operands of steps as lines: a value for each slot.
#pragma once
#include <cmath>
#include <vector>

#include "convert.h"
#include "tile.h"
#include "weights.h"

namespace TF_NAMESPACE {

// One element per channel, laid out by slots; `none` where a slot has no channel.
template <class T>
static std::vector<T> by_slot(const Layer& p, const void* operand, const Channels& c, T none) {
    std::vector<T> line(c.slots, none);
    for (int64_t i = 0; i < c.count && operand; i++)
        load_row(p.operands, operand, i, 1, 1, &line[c.slot(i)]);
    return line;
}

// Three lines, one after another: (x - mean) * scale + bias.
template <class T> static std::vector<T> norm_lines(const Layer& p, const transfuse_step& s, const Channels& c) {
    std::vector<T> line = by_slot<T>(p, s.t2, c, 0), scale = by_slot<T>(p, s.t0, c, 1);
    const auto var = by_slot<T>(p, s.t3, c, 1), bias = by_slot<T>(p, s.t1, c, 0);
    for (int64_t k = 0; k < c.slots; k++) scale[k] = T(double(scale[k]) / std::sqrt(double(var[k]) + s.f0));
    line.insert(line.end(), scale.begin(), scale.end());
    line.insert(line.end(), bias.begin(), bias.end());
    return line;
}

// The operand of an element step; a map has its own.
template <class T> static std::vector<T> operand_lines(const Layer& p, const transfuse_step& s, Channels c) {
    // Parts are whole vectors, so those of all channels follow one another.
    for (int64_t* each : {&c.count, &c.per_group, &c.padded, &c.slots}) *each *= p.parts;
    if (s.op == TF_NORM) return norm_lines<T>(p, s, c);
    const bool constant = (s.op == TF_ADD || s.op == TF_SCALE) && !s.t0;
    return constant ? std::vector<T>(c.slots, T(s.f0)) : by_slot<T>(p, s.t0, c, T(s.op == TF_ADD ? 0 : 1));
}

}  // namespace TF_NAMESPACE

// What outputs read, axis by axis: their taps, and the inputs that these meet.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "program.h"
#include "taps.h"

namespace TF_NAMESPACE {

constexpr double FEW_ZEROS = 0.96;  // products with an input, where leaving out the others is no gain

// What outputs lo <= o < hi of an axis read: for each, its taps and the inputs they meet.
struct Reads {
    struct Meets {
        int64_t tap, input;
    };
    std::vector<std::vector<Meets>> of;  // by output - lo; only inputs that exist
    int64_t lo = INT64_MAX, hi = INT64_MIN;  // inputs met at all

    Reads() = default;
    Reads(const transfuse_program& p, int axis, int64_t inputs, int64_t from, int64_t to) {
        const Taps taps(p, axis);
        for (int64_t o = from; o < to; o++) {
            of.emplace_back();
            taps.each(o, 0, inputs, [&](int64_t k, int64_t i) {
                of.back().push_back({k, i});
                lo = std::min(lo, i);
                hi = std::max(hi, i + 1);
            });
        }
        if (lo > hi) lo = hi = 0;
    }

    // Of the inputs from lo on, those that are met: dilation passes over others.
    std::vector<bool> met() const {
        std::vector<bool> found(size_t(hi - lo), false);
        for (const auto& each : of)
            for (const Meets& meets : each) found[size_t(meets.input - lo)] = true;
        return found;
    }
};

// Outputs start, start + stride, … along the width, and where each tap meets the first of them.
struct WidthPhase {
    struct Meets {
        int64_t tap, input;
    };
    int64_t start, count;
    std::vector<Meets> taps;

    // Neighbouring taps that meet inputs at the outputs lo to hi alone, the longest first; none where all taps are
    // taken at all outputs, zeros beyond the ends included.
    struct Span {
        size_t first, taps;
        int64_t lo, hi;
    };
    std::vector<Span> spans;

    // Short rows meet many of these zeros.
    void list_spans(int64_t inputs) {
        for (size_t i = 0; i < taps.size(); i++) {
            const int64_t lo = std::max<int64_t>(0, -taps[i].input), hi = std::min(count, inputs - taps[i].input);
            if (lo >= hi) continue;
            if (spans.size() && spans.back().lo == lo && spans.back().hi == hi && spans.back().first + spans.back().taps == i)
                spans.back().taps++;
            else
                spans.push_back({i, 1, lo, hi});
        }
        std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.hi - a.lo > b.hi - b.lo; });
        if (double(met(inputs)) > FEW_ZEROS * double(count) * double(taps.size())) spans.clear();
    }

    // Pairs of a tap and an output that meet an input.
    int64_t met(int64_t inputs) const {
        int64_t found = 0;
        for (const Meets& each : taps) {
            const int64_t lo = std::max<int64_t>(0, -each.input), hi = std::min(count, inputs - each.input);
            found += std::max<int64_t>(0, hi - lo);
        }
        return found;
    }
};

static std::vector<WidthPhase> width_phases(const transfuse_program& p, int64_t inputs, int64_t lo,
                                            int64_t hi) {
    const Taps taps(p, 2);
    std::vector<WidthPhase> phases;
    for (int64_t o = lo; o < std::min(lo + p.stride[2], hi); o++) {
        WidthPhase phase = {o, (hi - o + p.stride[2] - 1) / p.stride[2], {}, {}};
        taps.each(o, 1 - phase.count, inputs, [&](int64_t k, int64_t i) { phase.taps.push_back({k, i}); });
        phases.push_back(std::move(phase));
    }
    return phases;
}

}  // namespace TF_NAMESPACE

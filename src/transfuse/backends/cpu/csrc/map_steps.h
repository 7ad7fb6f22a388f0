// The maps among a program's steps, with the operands that they read beside the values.
#pragma once
#include <algorithm>
#include <vector>

#include "block.h"
#include "division.h"
#include "map.h"
#include "tile.h"
#include "weights.h"

namespace TF_NAMESPACE {

constexpr int64_t BLOCK = 4096;  // values that go through several steps in the first-level cache

template <class T> class MapSteps {
  public:
    MapSteps(const Layer& p, const std::vector<Level>& at) : p(p), at(at) {
        for (int i = 0; i < p.steps_count; i++) {
            const bool is_map = p.steps[i].op == TF_MAP;
            maps.emplace_back(is_map ? &p.steps[i].map->code : nullptr);
            lines.push_back(is_map ? lines_of(p.steps[i], at[i].channels) : std::vector<T>());
            const int64_t line = std::max(BLOCK, at[i].channels.slots);
            int64_t room = 0;
            for (int k = 0; k < maps[i].operands(); k++) room += varies(p.steps[i].map->operands[k]) ? line : 0;
            beside = std::max(beside, room);
        }
    }

    // Values of the operands of a block, for the map that reads most.
    int64_t room() const { return beside; }

    // The operands of map `i` that vary, for `count` positions of a tile: [position][slot], one after another.
    void read(size_t i, const Tile<T>& tile, int64_t first, int64_t count, T* to) const {
        const Channels& c = tile.channels;
        for (int k = 0; k < maps[i].operands(); k++) {
            const transfuse_operand& operand = p.steps[i].map->operands[k];
            if (!varies(operand)) continue;
            each_run(operand, tile.box, tile.n, first, count, [&](int64_t at, int64_t n, int64_t from) {
                for (int64_t g = 0; g < c.count; g += c.per_group)
                    copy_block(operand.element, operand.data, from + (tile.first_channel() + g) * operand.strides[1],
                               {n, c.per_group}, {operand.strides[4], operand.strides[1]},
                               to + at * c.slots + c.slot(g), c.slots);
            });
            to += std::max(BLOCK, c.slots);
        }
    }

    // Map `i` of the values of a block; `others` is what `read` has put there.
    void positions(size_t i, Tile<T>& block, const T* others) const {
        const int64_t slots = block.channels.slots, strip = strip_of(slots), all = block.box.positions() * slots;
        From<T> from[UINT8_MAX];
        for (int64_t k = 0, count; k < all; k += count) {
            const int64_t slot = strip < slots ? k % slots : 0;
            count = std::min(strip, strip < slots ? slots - slot : all - k);
            operands_of(i, block.part, slot, false, others, k, from);
            maps[i](block.values + k, count, from);
        }
    }

    // Map `i` of values of one channel, those of `tile` from the position `first` on.
    void row(size_t i, T* v, int64_t n, int64_t c, const Tile<T>& tile, int64_t first, T* others) const {
        From<T> from[UINT8_MAX];
        T* to = others;
        for (int k = 0; k < maps[i].operands(); k++) {
            const transfuse_operand& operand = p.steps[i].map->operands[k];
            if (!varies(operand)) continue;
            each_run(operand, tile.box, tile.n, first, n, [&](int64_t at, int64_t some, int64_t base) {
                copy_block(operand.element, operand.data, base + c * operand.strides[1], {1, some},
                           {0, operand.strides[4]}, to + at, some);
            });
            to += std::max(BLOCK, tile.channels.slots);
        }
        operands_of(i, 0, tile.channels.slot(c), true, others, 0, from);
        maps[i](v, n, from);
    }

  private:
    const Layer& p;
    const std::vector<Level>& at;
    std::vector<Map<T>> maps;           // by the step
    std::vector<std::vector<T>> lines;  // each map's operands by slot
    int64_t beside = 0;

    // The values of a strip: whole positions as long as they fit, else a part of one.
    static int64_t strip_of(int64_t slots) {
        constexpr int64_t most = STRIP * LANES<T>;
        return slots > most ? most : most / slots * slots;
    }

    // Each operand of a map by slot, for each part as often as there are positions in a strip.
    std::vector<T> lines_of(const transfuse_step& s, Channels c) const {
        // Parts are whole vectors, so those of all channels follow one another.
        for (int64_t* each : {&c.count, &c.per_group, &c.padded, &c.slots}) *each *= p.parts;
        std::vector<T> all;
        const int64_t slots = c.slots / p.parts, times = std::max<int64_t>(1, strip_of(slots) / slots);
        for (int i = 0; i < s.map->code.operands_count; i++) {
            const transfuse_operand& operand = s.map->operands[i];
            if (varies(operand)) {  // read block by block
                all.resize(all.size() + p.parts * std::max(slots, strip_of(slots)));
                continue;
            }
            std::vector<T> line(c.slots);
            for (int64_t k = 0; k < c.count; k++)
                load_row(operand.element, operand.data, k * operand.strides[1], 1, 1, &line[c.slot(k)]);
            for (int64_t part = 0; part < p.parts; part++)
                for (int64_t k = 0; k < times; k++)
                    all.insert(all.end(), line.begin() + part * slots, line.begin() + (part + 1) * slots);
        }
        return all;
    }

    // Whether an operand has more than one value per channel.
    static bool varies(const transfuse_operand& operand) {
        const int64_t* s = operand.strides;
        return s[0] || s[2] || s[3] || s[4];
    }

    // Calls f(i, n, at) for `count` positions of a box, row by row: from the i-th on there are
    // n in a row, and the values of an operand for them begin at `at`.
    template <class F>
    static void each_run(const transfuse_operand& operand, const Box& box, int64_t sample, int64_t first, int64_t count, F f) {
        const int64_t* s = operand.strides;
        for (int64_t i = 0, n; i < count; i += n) {
            const int64_t p = first + i, w = p % box.size(2), row = p / box.size(2);
            n = std::min(count - i, box.size(2) - w);
            f(i, n, sample * s[0] + (box.lo[0] + row / box.size(1)) * s[2] + (box.lo[1] + row % box.size(1)) * s[3] +
                        (box.lo[2] + w) * s[4]);
        }
    }

    // The operands of map `i` from slot `slot` of a part on: strips, or for one channel its numbers. Those that vary
    // are `others`, for the values from `offset` on.
    void operands_of(size_t i, int64_t part, int64_t slot, bool alone, const T* others, int64_t offset,
                      From<T>* found) const {
        const int64_t slots = at[i].channels.slots, room = std::max(slots, strip_of(slots));
        for (int k = 0; k < maps[i].operands(); k++) {
            const T* line = &lines[i][(k * p.parts + part) * room + slot];
            found[k] = alone ? From<T>{nullptr, *line} : From<T>{line, T(0)};
            if (!varies(p.steps[i].map->operands[k])) continue;
            found[k] = {others + offset, T(0)};
            others += std::max(BLOCK, slots);
        }
    }
};

}  // namespace TF_NAMESPACE

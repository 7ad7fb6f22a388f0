// The steps of a program on a tile, and those of single elements on a row of the output.
#pragma once
#include <algorithm>
#include <vector>

#include "elements.h"
#include "gathering.h"
#include "lines.h"
#include "map_steps.h"
#include "tile.h"

namespace TF_NAMESPACE {

template <class T> class TileSteps {
  public:
    Gathering<T> gathered;

    TileSteps(const Layer& p, const std::vector<Level>& at, int threads) : gathered(p, at, threads), p(p), at(at), maps(p, at) {
        for (int i = 0; i < p.steps_count; i++)
            lines.push_back(p.steps[i].op == TF_MAP ? std::vector<T>() : operand_lines<T>(p, p.steps[i], at[i].channels));
    }

    // Values that a thread needs for itself, for the operands of maps.
    int64_t room() const { return maps.room(); }

    // The operand of step i, an addition, for each slot.
    const T* line(size_t i, const Tile<T>& tile) const { return lines_of(i, tile.n, tile.part).of[0]; }

    // Steps i to end, a block of positions at a time, so that values stay in the first-level cache.
    void positions(Tile<T>& tile, size_t i, size_t end, T* others) {
        const int64_t all = tile.box.positions(), some = std::max<int64_t>(1, BLOCK / tile.channels.slots);
        Tile<T> block = tile;
        for (int64_t p0 = 0; p0 < all; p0 += some) {
            block.values = tile.at(p0);
            block.box = {{0, 0, 0}, {1, 1, std::min(some, all - p0)}};
            for (size_t k = i; k < end; k++) {
                if (p.steps[k].op == TF_SOFTMAX) {
                    channel_softmax(block);
                } else if (p.steps[k].op == TF_MAP) {
                    maps.read(k, tile, p0, block.box.positions(), others);
                    maps.positions(k, block, others);
                } else if (p.steps[k].op != TF_CUT) {
                    const Lines<T> l = lines_of(k, tile.n, tile.part);
                    with_element_op(p.steps[k].op, [&](auto op) {
                        each_vector(block, [&](Vec<T> x, int64_t s) {
                            return element_step<decltype(op)::value, T>(p.steps[k], x, [&](int line) {
                                return load(l.of[line] + s);
                            });
                        });
                    });
                }
            }
        }
    }

    // Steps that see more than a position.
    void step(Tile<T>& tile, size_t i, const Box& next, bool fresh, std::vector<Moments>& moments) {
        const transfuse_step& s = p.steps[i];
        typedef Vec<T> V;
        const Channels& c = tile.channels;
        const int64_t* extents = at[i].extents;
        switch (s.op) {
            case TF_SUM: return channel_sum(tile);
            case TF_MAX_POOL:
                return pool(tile, s, next, extents, [](V a, V b, int64_t) { return maximum(a, b); });
            case TF_SUM_POOL: {
                pool(tile, s, next, extents, [](V a, V b, int64_t) { return a + b; });
                const T factor = T(s.f0);
                return each_vector(tile, [&](V x, int64_t) { return x * factor; });
            }
            case TF_SIGN_POOL: {
                const T* sign = lines_of(i, tile.n, tile.part).of[0];
                return pool(tile, s, next, extents, [&](V a, V b, int64_t k) {
                    return load(sign + k) < T(0) ? minimum(a, b) : maximum(a, b);
                });
            }
            case TF_BATCH_STATS:
                if (!fresh) return;
                slot_moments(tile, moments);
                return gathered.add(i, tile, moments);
            case TF_GROUP_STATS:
                if (!fresh) return;
                slot_moments(tile, moments);
                return gathered.add(i, tile, by_group(moments, c, s.i0));
            case TF_EXP_STATS: {
                const auto found = sums<true>(tile);
                return fresh ? gathered.add(i, tile, found) : void();
            }
            case TF_MAX_STATS: return fresh ? gathered.add(i, tile, maxima(tile)) : void();
            case TF_GROUP_NORM: {
                Statistic<T> own(1, c.slots);
                slot_moments(tile, moments);
                affine(p, own, 0, by_group(moments, c, s.i0).data(), s.i0, c, s);
                return apply<TF_GROUP_APPLY>(tile, s, own);
            }
            case TF_SPACE_SOFTMAX: {
                Statistic<T> own(1, c.slots);
                const auto found = maxima(tile);
                for (int64_t k = 0; k < c.slots; k++) {
                    own.shift[k] = T(found[k].mean);
                    own.scale[k] = T(1 / found[k].m2);
                }
                return apply<TF_MAX_APPLY>(tile, s, own);
            }
        }
    }

    // Element step i of n values of channel c: those of `tile`, all of a sample, from position `first` on.
    void row(size_t i, T* v, int64_t n, int64_t c, const Tile<T>& tile, int64_t first, T* others) const {
        if (p.steps[i].op == TF_MAP) return maps.row(i, v, n, c, tile, first, others);
        const Lines<T> l = lines_of(i, tile.n, 0);
        const int64_t slot = tile.channels.slot(c);
        with_element_op(p.steps[i].op, [&](auto op) {
            each_in_row(v, n, [&](Vec<T> x) {
                return element_step<decltype(op)::value, T>(p.steps[i], x, [&](int line) {
                    return fill(l.of[line][slot]);
                });
            });
        });
    }

  private:
    const Layer& p;
    const std::vector<Level>& at;
    const MapSteps<T> maps;
    std::vector<std::vector<T>> lines;  // each step's operand by slot

    Lines<T> lines_of(size_t i, int64_t sample, int64_t part) const {
        const int op = p.steps[i].op;
        if (op >= TF_BATCH_APPLY) return gathered.lines(i, sample);
        const T* line = &lines[i][part * at[i].channels.slots];
        const int64_t all = op == TF_NORM ? p.parts * at[i].channels.slots : 0;
        return {{line, line + all, line + 2 * all}};
    }

    template <int OP> void apply(Tile<T>& tile, const transfuse_step& s, const Statistic<T>& own) {
        const Lines<T> l = own.lines(0, tile.channels.slots);
        each_vector(tile, [&](Vec<T> x, int64_t k) {
            return element_step<OP, T>(s, x, [&](int line) { return load(l.of[line] + k); });
        });
    }
};

}  // namespace TF_NAMESPACE

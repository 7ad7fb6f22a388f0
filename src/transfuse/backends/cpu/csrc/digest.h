// Whether memory still holds the same bytes, from reading it once: 128 bits of it, under random keys.
//
// NH of UMAC (Black et al. 1999): blocks of 1 KiB, words of 32 bits plus keys in pairs, their products
// added up in 64 bits, twice, with keys shifted (Toeplitz). Blocks of one length that differ give the
// same 128 bits with a probability of 2^-64, whatever is in them: it is the keys that are random. The
// digests of blocks lie side by side and are digested again, with other keys, until one is left: at
// most eight times, so all in all 2^-61.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>

#include "memory.h"
#include "vector.h"

namespace TF_NAMESPACE {

constexpr int64_t DIGEST_BLOCK = 1024, DIGEST_BYTES = 16, DIGEST_LEVELS = 8;
constexpr int64_t DIGEST_WORDS = DIGEST_BLOCK / 4, DIGEST_SHIFT = 16;
constexpr int64_t DIGEST_ALONE = 1 << 18;  // bytes that one thread reads while others would wake up

typedef uint32_t Words __attribute__((vector_size(TF_BYTES)));
typedef uint32_t LooseWords __attribute__((vector_size(TF_BYTES), aligned(1), may_alias));
typedef uint64_t Longs __attribute__((vector_size(TF_BYTES)));
typedef std::array<std::array<uint32_t, DIGEST_WORDS + DIGEST_SHIFT>, DIGEST_LEVELS> DigestKeys;

// Random for every process: nobody can make two kernels that it takes for one.
static inline const DigestKeys& digest_keys() {
    static const DigestKeys keys = [] {
        std::random_device random;
        DigestKeys fresh;
        for (auto& level : fresh)
            for (uint32_t& word : level) word = random();
        return fresh;
    }();
    return keys;
}

// The low half of every long times its high half.
TF_INLINE Longs halves_product(Longs v) {
#if TF_BYTES == 64
    return (Longs)_mm512_maskz_mul_epu32(0xff, (__m512i)v, (__m512i)(v >> 32));
#elif TF_BYTES == 32
    return (Longs)_mm256_mul_epu32((__m256i)v, (__m256i)(v >> 32));
#else
    return (v & 0xffffffff) * (v >> 32);
#endif
}

static inline void digest_block(const unsigned char* from, const uint32_t* keys, uint64_t* to) {
    const auto words = [](const void* p) { return Words(*static_cast<const LooseWords*>(p)); };
    Longs first = {}, second = {};
    for (int64_t i = 0; i < DIGEST_WORDS; i += TF_BYTES / 4) {
        const Words data = words(from + 4 * i);
        first += halves_product((Longs)(data + words(keys + i)));
        second += halves_product((Longs)(data + words(keys + i + DIGEST_SHIFT)));
    }
    to[0] = to[1] = 0;
    for (int i = 0; i < TF_BYTES / 8; i++) to[0] += first[i], to[1] += second[i];
}

static inline void digest(const void* data, int64_t bytes, int threads, uint64_t* found) {
    Buffer<uint64_t> above, below;
    const unsigned char* from = static_cast<const unsigned char*>(data);
    int64_t blocks, level = 0;
    do {
        const uint32_t* keys = digest_keys()[level].data();
        blocks = std::max<int64_t>(1, (bytes + DIGEST_BLOCK - 1) / DIGEST_BLOCK);
        uint64_t* to = found;  // the last one
        if (blocks > 1) above = allocate<uint64_t>(2 * blocks), to = above.get();
        const auto one = [=](int64_t i) {
            const unsigned char* block = from + i * DIGEST_BLOCK;
            unsigned char last[DIGEST_BLOCK];
            if (bytes - i * DIGEST_BLOCK < DIGEST_BLOCK) {
                std::memset(last, 0, sizeof last);
                if (bytes) std::memcpy(last, block, bytes - i * DIGEST_BLOCK);
                block = last;
            }
            digest_block(block, keys, to + 2 * i);
        };
        if (bytes > DIGEST_ALONE) {
#pragma omp parallel for schedule(static) num_threads(threads)
            for (int64_t i = 0; i < blocks; i++) one(i);
        } else {
            for (int64_t i = 0; i < blocks; i++) one(i);
        }
        below = std::move(above);
        from = reinterpret_cast<const unsigned char*>(below.get());
        bytes = blocks * DIGEST_BYTES;
        level++;
    } while (blocks > 1);
}

}  // namespace TF_NAMESPACE

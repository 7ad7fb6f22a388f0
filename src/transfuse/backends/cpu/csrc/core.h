/* The core's own interface: programs, sweeps, packed weights, instruction sets. C, no torch. */
#ifndef TRANSFUSE_CORE_H
#define TRANSFUSE_CORE_H
#include "program.h"
#include "sweep.h"
#include "winners.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every function that can fail gives 0, or 1 with transfuse_message() saying why; one that gives something
 * else gives -1 then. */
const char* transfuse_message(void);

/* What this build is, for a caller written apart from it to compare with what it takes it to be: lines of
 * text with the number below, the names in the order of their enumerations, and for all
 * structures the size and every field's offset. The number goes up where these stay and their meaning
 * does not. */
#define TRANSFUSE_ABI 2
const char* transfuse_abi(void);

/* The instruction set in use ("avx512", "avx2", "sse2", "neon"); the best one this machine runs. */
const char* transfuse_isa(void);
/* Use another one that this machine runs; null or "" goes back to the best. */
int transfuse_use_isa(const char* name);
/* Those this machine runs, best first, separated by spaces. */
const char* transfuse_isas(void);

/* Weights in the order in which the instruction set in use reads them; strides in elements. */
int64_t transfuse_packed_bytes(const transfuse_program* program);
int transfuse_pack(const transfuse_program* program, const void* weights, const int64_t* strides, int32_t threads, void* to);

/* How often a convolution copies each of its inputs, on the average, with the instruction set in use, since neighbouring
 * tiles read some of them, too: where maps stand before it, and where nothing does, 0 if it reads them where they lie. The
 * program is of a convolution alone; no address is looked at. */
int transfuse_copies(const transfuse_program* program, double* times);

/* 128 bits of some memory: others, but for a chance of 2^-61, if any of its bytes is another. They
 * hold within a process, for one instruction set. */
int transfuse_digest(const void* data, int64_t bytes, int32_t threads, uint64_t* found);

/* 1 if none of these values, of an element type, is NaN or Inf, else 0. */
int transfuse_finite(const void* values, int64_t count, int32_t element);

/* What becomes of the values at each cut of a program, by the number of its step: as it says there, or where
 * it leaves that open, what transfuse_run decides. TF_DECIDE is never among them. */
int transfuse_decide(const transfuse_program* program, int32_t* cuts);

/* `threads` is at least 1. Beyond 64 it is no more than OpenMP would use by itself, or processors there are. */
int transfuse_run(const transfuse_program* program, int32_t threads);
/* The same, and how many seconds each pass takes: that of the pool, if there is one, then the walks over all
 * tiles that the cuts leave, up to each where values are stored or computed again, and the last. There is room
 * for two numbers more than steps. */
int transfuse_run_timed(const transfuse_program* program, int32_t threads, double* seconds);
/* What transfuse_run does, if the memory that the weights were packed from still has the digest that it had then; if it has
 * another, or one of another instruction set, 2, and nothing is run. */
int transfuse_run_unless_changed(const transfuse_program* program, int32_t threads, const void* data,
                                 int64_t bytes, const uint64_t* digest);
int transfuse_sweep_run(const transfuse_sweep* sweep, int32_t threads);
int transfuse_winners_run(const transfuse_winners* winners, int32_t threads);

#ifdef __cplusplus
}
#endif
#endif

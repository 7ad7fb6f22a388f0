/* A sweep: one walk over tensors in memory, as plain data. What each kind computes is said in sweeps.py.
 *
 * Sizes are at least 1, but for folded axes of none; no view, and nothing that a sweep walks over, has more
 * than 2^48 elements. validate.cpp holds every sweep to it. */
#ifndef TRANSFUSE_SWEEP_H
#define TRANSFUSE_SWEEP_H
#include "program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRANSFUSE_EACH_KIND(K) K(EACH) K(FOLD) K(SLIDE)
#define TRANSFUSE_KIND(name) TF_##name,
enum transfuse_kind { TRANSFUSE_EACH_KIND(TRANSFUSE_KIND) TF_KINDS };
#undef TRANSFUSE_KIND

#define TRANSFUSE_EACH_FOLDING(F) \
    F(SUM) F(MEAN) F(MAX) F(MIN) F(LOGSUMEXP) F(EXPONENTIALS) F(MOMENTS) F(SQUARES) F(SIGN)
#define TRANSFUSE_FOLDING(name) TF_F_##name,
enum transfuse_folding { TRANSFUSE_EACH_FOLDING(TRANSFUSE_FOLDING) TF_FOLDINGS };
#undef TRANSFUSE_FOLDING

enum { TF_JOINED = 64 }; /* neighbours that make one result, at most */
enum { TF_AXES = 9 }; /* the eight of a view, and one where a fold has none to fold */

/* Memory as a sweep reads or writes it, from its first element on. */
typedef struct {
    int32_t element;
    void* data;
    int64_t strides[TF_AXES]; /* in elements, none negative; 0 reads one value along a whole axis */
} transfuse_view;

/* TF_EACH has two axes or more. TF_FOLD has one or more that are kept, then one or more that are folded. Where
 * neighbours are joined, the last axis that is kept is of these, and outputs and others step from one result to the next.
 * TF_SLIDE has five: samples, channels, depth, height, width, whose sizes are those of the output; along
 * the last three the values have `inputs`. */
typedef struct {
    int32_t kind, folding;
    int32_t kept, folded; /* axes */
    int32_t across;       /* vectors lie: of a fold along its last kept axis, of a slide along channels */
    int32_t joined;       /* of a fold across: neighbours along that axis that make one result; 0 is 1 */
    int64_t sizes[TF_AXES];
    int32_t values_count, others_count;
    const transfuse_view* values; /* the operands of `before` */
    const transfuse_view* others; /* the operands of `after`, along the axes of the output; then TF_F_SIGN's */
    transfuse_view outs[2];       /* the second of TF_F_EXPONENTIALS and TF_F_MOMENTS alone */
    const transfuse_code* before; /* does not read the running value; null: the one value as it is */
    const transfuse_code* after;  /* null: the result as it is */
    int64_t inputs[3], kernel[3], stride[3], padding[3], dilation[3];
    int32_t adaptive, counts_padding;
    double divisor; /* 0: as many as there are */
} transfuse_sweep;

#ifdef __cplusplus
}
#endif
#endif

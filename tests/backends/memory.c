/* Calls in which the n-th block of memory is not to be had: each must end, with 0 or a message. */
#define _POSIX_C_SOURCE 200112L
#include <stdio.h>
#include <stdlib.h>

#include "transfuse.h"

static int left; /* blocks until one fails; below 0 none does */

/* The core takes its memory from here, not from the C library. */
void* aligned_alloc(size_t alignment, size_t size) {
    void* block = NULL;
    if (__sync_sub_and_fetch(&left, 1) == 0 || posix_memalign(&block, alignment, size)) return NULL;
    return block;
}

static float x[4 * 8 * 16 * 16], w[8 * 16 * 5 * 5], v[16], y[4 * 16 * 9 * 9];

static void tell(int status) { printf("%d %s\n", status, status ? transfuse_message() : ""); }

int main(int count, char** words) {
    if (count != 2) return 2;
    left = atoi(words[1]);
    tell(transfuse_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_f32(
        x, w, v, v, v, v, y, 4, 8, 16, 16, 16, 5, 5, 1, 1, 1, 1, 0, 0, 1, 8));
    left = atoi(words[1]);
    tell(transfuse_conv_transpose3d_avgpool_clamp_softmax_multiply_f32(
        x, w, v, y, 4, 8, 4, 8, 4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 2, 0.0, 1.0));
    return 0;
}

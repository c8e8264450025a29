/* rope.h - inverse frequencies of rotary embedding with the scalings of model configs. */
#ifndef GOMLX_NN_ROPE_H
#define GOMLX_NN_ROPE_H
#include "core/array.h"

typedef enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_DYNAMIC, ROPE_PROPORTIONAL } rope_kind;

typedef struct {
    rope_kind kind;
    int dims;       /* of head_dim that are rotated; proportional: all, most of them by 0 */
    double partial; /* proportional: the share of dims with a frequency */
    double theta, factor;
    double low_freq_factor, high_freq_factor;        /* llama3 */
    double original_context;                         /* llama3, yarn */
    double beta_fast, beta_slow;                     /* yarn */
    double attention_factor, mscale, mscale_all_dim; /* yarn; 0: not given */
    bool truncate;                                   /* yarn: the ramp begins and ends at integers */
} rope_config;

/* Fills inv_freq[dims / 2] (float32, computed in double) and the factor of cos and sin. */
void rope_frequencies(const rope_config *c, float *inv_freq, float *factor);
#endif

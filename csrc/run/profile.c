/* profile.c - see profile.h. */
#include "run/profile.h"
#include <string.h>

const char *gm_work_name(gm_work work) {
    static const char *const names[GM_WORK_CLASSES] = {
        [GM_WORK_OTHER] = "other",
        [GM_WORK_EMBEDDING] = "embedding",
        [GM_WORK_NORM] = "norm",
        [GM_WORK_ATTENTION_PROJECTION] = "attention_projection",
        [GM_WORK_ATTENTION] = "attention",
        [GM_WORK_RECURRENT] = "recurrent",
        [GM_WORK_ROUTER] = "router",
        [GM_WORK_EXPERTS] = "experts",
        [GM_WORK_MLP] = "mlp",
        [GM_WORK_HEAD] = "head",
        [GM_WORK_SAMPLING] = "sampling",
    };
    return (unsigned)work < GM_WORK_CLASSES ? names[work] : NULL;
}

/* A model has the same types in every pass; passes may read less of them. */
static void add_weights(gm_phase_profile *to, const gm_phase_profile *pass) {
    for (int i = 0; i < GM_MAX_WEIGHT_TYPES && pass->weights[i].type[0]; i++)
        for (int k = 0; k < GM_MAX_WEIGHT_TYPES; k++) {
            if (to->weights[k].type[0] && strcmp(to->weights[k].type, pass->weights[i].type) != 0)
                continue;
            memcpy(to->weights[k].type, pass->weights[i].type, sizeof to->weights[k].type);
            to->weights[k].bytes += pass->weights[i].bytes;
            break;
        }
    for (int i = 0; i < GM_WORK_CLASSES; i++)
        to->work_bytes[i] += pass->work_bytes[i];
}

void profile_add_pass(gm_phase_profile *to, const gm_phase_profile *pass, int64_t tokens) {
    to->passes++;
    to->tokens += tokens;
    to->pass_ns += pass->pass_ns;
    to->setup_ns += pass->setup_ns;
    to->wait_ns += pass->wait_ns;
    to->thread_wait_ns += pass->thread_wait_ns;
    for (int i = 0; i < GM_WORK_CLASSES; i++) {
        to->work[i].launches += pass->work[i].launches;
        to->work[i].pieces += pass->work[i].pieces;
        to->work[i].barriers += pass->work[i].barriers;
        to->work[i].ns += pass->work[i].ns;
        to->work[i].thread_ns += pass->work[i].thread_ns;
    }
    add_weights(to, pass);
}

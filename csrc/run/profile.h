/* profile.h - adding up what forward passes did; what the numbers are is in gomlx.h. */
#ifndef GOMLX_RUN_PROFILE_H
#define GOMLX_RUN_PROFILE_H
#include "gomlx.h"

/* One more pass, of which `tokens` rows count here. */
void profile_add_pass(gm_phase_profile *to, const gm_phase_profile *pass, int64_t tokens);
#endif

/* source.h - the inside of config.h, for config.c and config_parts.c. */
#ifndef GOMLX_MODELS_SOURCE_H
#define GOMLX_MODELS_SOURCE_H
#include <cjson/cJSON.h>
#include "models/config.h"

struct config_source {
    const char *name;                /* the file */
    const cJSON *root, *top;         /* top: around a text_config, else NULL */
    const gguf *g;                   /* NULL: config.json */
    const char *arch;                /* GGUF keys begin with it */
    const gm_checkpoint *checkpoint; /* of config.json; or NULL */
    config_listener *listener;       /* NULL, or what is told each question: then there is neither root nor g */
};
const cJSON *source_item(const config_source *s, const char *key); /* NULL: missing or null */
/* The same of an object, of s itself or (object) of another one; anything else is an error that names it. */
gm_status source_object(const config_source *s, const cJSON *object, const char *key, const cJSON **out);
const gguf_entry *source_entry(const config_source *s, const char *key); /* without the architecture's name */
gm_status source_number(const config_source *s, const cJSON *object, const char *key, double *out);
gm_status source_integer(const config_source *s, const char *key, const cJSON *v, int64_t *out);
gm_status source_hear(const config_source *s, config_value_kind kind, const char *key, const char *gguf, double usual);
gm_status source_check_sizes(const config_source *s, const gm_config *c);
#endif

/* component.h - readers of a tokenizer.json's components. Each takes a json_reader at the component's object or at
 * null. */
#ifndef GOMLX_TEXT_COMPONENT_H
#define GOMLX_TEXT_COMPONENT_H
#include "text/load/member.h"
#include "text/tokenizer.h"

/* Reads to the end of the object (json_model.c). */
gm_status component_model(gm_tokenizer *t, json_reader *r);
/* Reads a tokenizer.json without a model, which comes from another file (json_file.c). */
gm_status component_parts(gm_tokenizer *t, const char *json, size_t length, const char *name);
/* Reads one component from JSON text, for files that describe it in another way. */
gm_status component_literal(gm_tokenizer *t, gm_status (*read)(gm_tokenizer *, const json_reader *), const char *json);
gm_status component_normalizer(gm_tokenizer *t, const json_reader *r);
gm_status component_pretokenizer(gm_tokenizer *t, const json_reader *r);
gm_status component_post_processor(gm_tokenizer *t, const json_reader *r);
gm_status component_truncation(gm_tokenizer *t, const json_reader *r);
gm_status component_padding(gm_tokenizer *t, const json_reader *r);
gm_status component_decoder(gm_tokenizer *t, const json_reader *r);
/* ---- shared by the readers ---- */
/* Moves *type to the component's type, a string. */
gm_status component_open(const json_reader *component, const char *what, json_reader *type);
/* Reads 'pattern', {"String": "..."} or {"Regex": "..."}, which must not be empty. */
gm_status component_pattern(const json_reader *object, char **text, size_t *length, bool *is_regex);
/* Reads 'prepend_scheme', or in old files 'add_prefix_space'. */
gm_status component_scheme(const json_reader *r, prefix_scheme *out);
gm_status component_character(const json_reader *r, const char *key, uint32_t *out);
/* The error for a `what` whose type is not implemented; type is at its name. */
gm_status component_unsupported(const json_reader *type, const char *what);
#endif

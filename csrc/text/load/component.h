/* component.h - the small components of a tokenizer.json, each from a reader that stands on its object or on null. */
#ifndef GOMLX_TEXT_COMPONENT_H
#define GOMLX_TEXT_COMPONENT_H
#include "text/load/member.h"
#include "text/tokenizer.h"

/* Reads on to the object's end (json_model.c). */
gm_status component_model(gm_tokenizer *t, json_reader *r);
/* A tokenizer.json without a model, for one that comes from elsewhere (json_file.c). */
gm_status component_parts(gm_tokenizer *t, const char *json, size_t length, const char *name);
/* One component from the text of its object, for files that say it in other words. */
gm_status component_literal(gm_tokenizer *t, gm_status (*read)(gm_tokenizer *, const json_reader *), const char *json);
gm_status component_normalizer(gm_tokenizer *t, const json_reader *r);
gm_status component_pretokenizer(gm_tokenizer *t, const json_reader *r);
gm_status component_post_processor(gm_tokenizer *t, const json_reader *r);
gm_status component_truncation(gm_tokenizer *t, const json_reader *r);
gm_status component_padding(gm_tokenizer *t, const json_reader *r);
gm_status component_decoder(gm_tokenizer *t, const json_reader *r);
/* ---- what their readers share ---- */
/* *type stands on the component's type, a string. */
gm_status component_open(const json_reader *component, const char *what, json_reader *type);
/* 'pattern', {"String": "..."} or {"Regex": "..."}, never empty. */
gm_status component_pattern(const json_reader *object, char **text, size_t *length, bool *is_regex);
/* 'prepend_scheme', or in old files 'add_prefix_space'. */
gm_status component_scheme(const json_reader *r, prefix_scheme *out);
gm_status component_character(const json_reader *r, const char *key, uint32_t *out);
/* `type` stands on the name of a `what` that is not implemented. */
gm_status component_unsupported(const json_reader *type, const char *what);
#endif

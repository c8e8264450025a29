/* component.h - the small components of a tokenizer.json, each from a reader that stands on its object or on null. */
#ifndef GOMLX_TEXT_COMPONENT_H
#define GOMLX_TEXT_COMPONENT_H
#include "text/member.h"
#include "text/tokenizer.h"

/* Reads on to the object's end. (load_model.c; the others are in component.c) */
gm_status component_model(gm_tokenizer *t, json_reader *r);
gm_status component_normalizer(gm_tokenizer *t, const json_reader *r);
gm_status component_pretokenizer(gm_tokenizer *t, const json_reader *r);
gm_status component_post_processor(gm_tokenizer *t, const json_reader *r);
gm_status component_decoder(gm_tokenizer *t, const json_reader *r);
/* `type` stands on the name of a `what` that is not implemented. */
gm_status component_unsupported(const json_reader *type, const char *what);
#endif

/* pretokenize.h - the pre-tokenizer: steps that split a text into the pieces that the model encodes.
 * Each step splits every piece of the step before it. pretokens_next pulls one piece through all steps. */
#ifndef GOMLX_TEXT_PRETOKENIZE_H
#define GOMLX_TEXT_PRETOKENIZE_H
#include "text/split/regex.h"
#include "text/split/scanners.h"
#include "text/text_view.h"

#define PRETOKENIZE_MAX_STEPS 16

typedef enum {
    MATCH_NOTHING,
    MATCH_SCANNER,
    MATCH_REGEX,
    MATCH_TEXT,
    MATCH_DIGIT, /* one character, like the next two */
    MATCH_SPACE,
    MATCH_PUNCTUATION,
    MATCH_WORD,   /* \w+|[^\w\s]+ */
    MATCH_LENGTH, /* n_chars characters, or the rest */
    MATCH_SCRIPT, /* a run of one script */
} match_kind;
/* A match becomes a piece, is dropped, becomes one piece with adjacent matches, or joins the text before or after
 * it. */
typedef enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT } split_behavior;
typedef enum { PREFIX_NEVER, PREFIX_FIRST, PREFIX_ALWAYS } prefix_scheme;

/* First the piece's text is changed (alphabet, space, prefix), then it is split. */
typedef struct {
    bool alphabet; /* a ByteLevel before other steps: bytes become characters of GPT-2's alphabet */
    char *space;   /* Metaspace: what replaces ' '; NULL otherwise */
    char *prefix;  /* inserted before a piece that does not begin with it; NULL: none */
    size_t space_length, prefix_length;
    prefix_scheme scheme;
    match_kind match;
    scanner scanner;
    regex *regex;
    char *text; /* MATCH_TEXT, not empty */
    size_t text_length;
    size_t n_chars; /* MATCH_LENGTH, not 0 */
    split_behavior behavior;
    bool invert; /* matches and gaps are exchanged */
} pretokenize_step;

typedef struct {
    pretokenize_step steps[PRETOKENIZE_MAX_STEPS];
    int n_steps;
    bool byte_level; /* the model's symbols are bytes */
    bool by_origin;  /* texts must be aligned: the prefix depends on where a piece begins in the input */
} pretokenizer;

typedef struct {
    size_t start, end;
    bool is_match;
} split_part;

/* One step at work on one piece. */
typedef struct {
    text_view text;
    regex_walk walk; /* walk.last_end: the end of what was returned */
    bool first, has_match, has_peeked;
    split_part match, peeked; /* a match whose gap was returned; a part to return again */
    text_buffer changed;
    regex_work *regex;
} split_state;

typedef struct {
    const pretokenizer *p;
    split_state states[PRETOKENIZE_MAX_STEPS];
    int level;       /* the step that gives the next piece; -1 at the end */
    text_view whole; /* the only piece, without steps */
} pretoken_scan;

void pretokenizer_free(pretokenizer *p);
/* Call once, when all steps are added. */
void pretokenizer_finish(pretokenizer *p, bool text_is_normalized);
/* The scanner that alone decides where pieces end, if no step changes the text; else SCANNER_NONE. */
scanner pretokenizer_scanner(const pretokenizer *p);
/* scan is zero-initialised before its first use, reused for many texts, and freed at the end. at_start: the text begins
 * the input (Metaspace's "first"); for an aligned text its origin decides. */
gm_status pretokens_open(pretoken_scan *scan, const pretokenizer *p, const text_view *text, bool at_start);
/* GM_END after the last. Pieces are not empty; one is valid until the next call. */
gm_status pretokens_next(pretoken_scan *scan, text_view *piece);
void pretokens_free(pretoken_scan *scan);
#endif

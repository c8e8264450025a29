/* quick.c - see quick.h. */
#include "text/quick.h"

void quick_work_free(quick_work *work) { piece_cache_free(&work->cache); }

static gm_status encode_piece(const quick_way *way, quick_work *work, model_work *scratch,
                              const uint8_t *piece, size_t length, id_buffer *ids) {
    size_t count, before = ids->size;
    const uint32_t *known = piece_cache_find(&work->cache, piece, length, 0, &count);
    if (known != NULL) {
        GM_TRY(ids_reserve(ids, count));
        memcpy(ids->data + before, known, count * sizeof *known);
        ids->size += count;
        return GM_OK;
    }
    GM_TRY(model_encode(way->model, way->vocab, scratch, piece, length, ids, NULL));
    return piece_cache_keep(&work->cache, piece, length, 0, ids->data + before, ids->size - before);
}

gm_status quick_encode(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *text, size_t length,
                       id_buffer *ids) {
    piece_run *run = &work->run;
    run->text = text;
    run->length = length;
    for (size_t at = 0; at < length;) {
        at = way->kernels->split(way->scanner, run, at);
        for (size_t i = 0; i < run->n; i++) {
            GM_TRY(ids_reserve(ids, SHORT_IDS * (run->n - i + 1)));
            i = way->kernels->find_short(&work->cache, run, i, ids);
            if (i == run->n)
                break;
            size_t start = i == 0 ? run->start : run->ends[i - 1];
            GM_TRY(encode_piece(way, work, scratch, text + start, run->ends[i] - start, ids));
        }
    }
    return GM_OK;
}

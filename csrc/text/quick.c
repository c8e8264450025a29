/* quick.c - see quick.h. */
#include "text/quick.h"

void quick_work_free(quick_work *work) {
    piece_cache_free(&work->cache);
    memory_free(work->alphabet.data);
}

/* Learns the pieces of a run that are not known yet, from *from on: their merges go side by side. */
static gm_status learn(const quick_way *way, quick_work *work, const piece_run *run, size_t *from) {
    const bpe *b = &way->model->bpe;
    uint16_t missing[MERGE_LANES];
    if (way->model->kind != MODEL_BPE || (b->ignore_merges && !b->byte_level)) {
        ++*from;
        return GM_OK;
    }
    size_t n_missing = way->kernels->find_missing(&work->cache, run, from, missing, MERGE_LANES), n = 0;
    int32_t whole[MERGE_LANES];
    vocab_token texts[MERGE_LANES];
    memset(whole, 0xFF, sizeof whole);
    if (b->ignore_merges) {
        work->alphabet.size = 0;
        GM_TRY(bytes_reserve(&work->alphabet, 2 * (PIECE_MEDIUM + 1) * MERGE_LANES));
        for (size_t i = 0; i < n_missing; i++) {
            size_t start = missing[i] == 0 ? run->start : run->ends[missing[i] - 1], first = work->alphabet.size;
            for (size_t at = start; at < run->ends[missing[i]]; at++)
                work->alphabet.size += utf8_put(alphabet_char(run->text[at]), work->alphabet.data + work->alphabet.size);
            texts[i] = (vocab_token){ (uint32_t)first, (uint32_t)(work->alphabet.size - first) };
        }
        vocab_find_many(way->vocab, work->alphabet.data, texts, n_missing, whole);
    }
    uint16_t pieces[MERGE_LANES];
    for (size_t i = 0; i < n_missing; i++) {
        size_t start = missing[i] == 0 ? run->start : run->ends[missing[i] - 1], end = run->ends[missing[i]];
        if (whole[i] >= 0)
            GM_TRY(piece_cache_keep(&work->cache, run->text + start, end - start, 0, &whole[i], 1));
        else if (bpe_open_lane(b, &work->lanes[n], run->text + start, end - start))
            pieces[n++] = missing[i];
    }
    way->kernels->merge(b, work->lanes, n, true);
    for (size_t i = 0; i < n; i++) {
        size_t start = pieces[i] == 0 ? run->start : run->ends[pieces[i] - 1];
        GM_TRY(piece_cache_keep(&work->cache, run->text + start, run->ends[pieces[i]] - start, 0, work->lanes[i].ids,
                                work->lanes[i].n));
    }
    return GM_OK;
}

gm_status quick_encode(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *text, size_t length,
                       id_buffer *ids) {
    piece_run *run = &work->run;
    run->text = text;
    run->length = length;
    for (size_t at = 0; at < length;) {
        at = way->kernels->split(way->scanner, run, at);
        size_t learned = 0;    /* pieces before it were tried */
        for (size_t i = 0; i < run->n;) {
            GM_TRY(ids_reserve(ids, MEDIUM_IDS * (run->n - i + 1)));
            i = way->kernels->find(&work->cache, run, i, ids);
            if (i == run->n)
                break;
            size_t start = i == 0 ? run->start : run->ends[i - 1], n = run->ends[i] - start, count;
            const uint32_t *known = piece_cache_find(&work->cache, text + start, n, 0, &count);
            if (known == NULL && n <= PIECE_MEDIUM && learned <= i) {
                learned = i;
                GM_TRY(learn(way, work, run, &learned));
                continue;
            }
            if (known != NULL) {
                GM_TRY(ids_reserve(ids, count));
                memcpy(ids->data + ids->size, known, count * sizeof *known);
                ids->size += count;
            } else {
                size_t before = ids->size;
                GM_TRY(model_encode(way->model, way->vocab, scratch, text + start, n, ids, NULL));
                GM_TRY(piece_cache_keep(&work->cache, text + start, n, 0, ids->data + before, ids->size - before));
            }
            i++;
        }
    }
    return GM_OK;
}

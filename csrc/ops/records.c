/* records.c - the table of operations, of ops.def. */
#include <string.h>
#include "ops/ops.h"

const gm_op *const op_records[] = {
#define RECORD(name) &name##_op,
#include "ops/ops.def"
};
const int op_record_count = (int)(sizeof op_records / sizeof *op_records);

const gm_op *op_record(const char *name) {
    for (int i = 0; i < op_record_count; i++)
        if (strcmp(op_records[i]->name, name) == 0)
            return op_records[i];
    return NULL;
}

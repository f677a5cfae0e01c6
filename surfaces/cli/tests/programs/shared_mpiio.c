/* Four ranks write one file with MPI-IO, each through the directory that it is given, and read what the others wrote before it is closed. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1000, ROUNDS = 300, LARGE = 6 << 20 };

static int rank, ranks;

static void must(int code, const char *what) {
    if (code != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING];
        int len;
        MPI_Error_string(code, text, &len);
        fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char byte_at(int of, size_t at) { return (unsigned char)(1 + of * 61 + at * 7 + at / 251); }

static void check(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "rank %d: %s is not what was written\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

/* What is synced by one is seen by the others: sync, barrier, sync. */
static void exchange(MPI_File file) {
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char path[4096];
    snprintf(path, sizeof path, "%s/mpi.dat", argv[1 + rank % (argc - 1)]);
    MPI_Info info;
    MPI_Info_create(&info);
    /* Where locks do not count for all: nobody may write what he read before. For OMPIO that is a parameter of the run. */
    if (getenv("WITHOUT_LOCKS")) MPI_Info_set(info, "romio_ds_write", "disable");
    MPI_File file;
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file), "open");
    must(MPI_File_set_size(file, 0), "set_size");

    /* Every rank has every fourth block, of a length that is no page's, collectively. */
    static unsigned char block[BLOCK * ROUNDS];
    for (size_t i = 0; i < sizeof block; i++) block[i] = byte_at(rank, i);
    MPI_Datatype stripes;
    MPI_Type_vector(ROUNDS, BLOCK, BLOCK * ranks, MPI_BYTE, &stripes);
    MPI_Type_commit(&stripes);
    must(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, stripes, "native", info), "set_view");
    must(MPI_File_write_all(file, block, sizeof block, MPI_BYTE, MPI_STATUS_IGNORE), "write_all");
    must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", info), "set_view");
    exchange(file);

    /* What the next rank wrote is there before anybody closes the file. */
    int next = (rank + 1) % ranks;
    unsigned char seen[BLOCK];
    for (int round = 0; round < ROUNDS; round += 37) {
        MPI_Offset at = ((MPI_Offset)round * ranks + next) * BLOCK;
        must(MPI_File_read_at(file, at, seen, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
        for (int i = 0; i < BLOCK; i++) check(seen[i] == byte_at(next, (size_t)round * BLOCK + i), "a stripe of another rank");
    }

    /* The same blocks again, each rank by itself, with other bytes: what lies between belongs to others, who write at the same time. */
    for (size_t i = 0; i < sizeof block; i++) block[i] = byte_at(rank + 20, i);
    must(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, stripes, "native", info), "set_view");
    must(MPI_File_write(file, block, sizeof block, MPI_BYTE, MPI_STATUS_IGNORE), "write");
    must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", info), "set_view");
    exchange(file);

    /* One large range of each behind that, by itself; then a few bytes in the range of the one before. */
    MPI_Offset behind = (MPI_Offset)ROUNDS * ranks * BLOCK;
    unsigned char *large = malloc(LARGE);
    for (size_t i = 0; i < LARGE; i++) large[i] = byte_at(rank + 7, i);
    must(MPI_File_write_at(file, behind + (MPI_Offset)rank * LARGE, large, LARGE, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
    exchange(file);
    int before = (rank + ranks - 1) % ranks;
    must(MPI_File_write_at(file, behind + (MPI_Offset)before * LARGE + 12345, "overwritten", 11, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
    must(MPI_File_close(&file), "close");
    MPI_Barrier(MPI_COMM_WORLD);

    /* All of it, as a reader finds it. */
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, info, &file), "open to read");
    MPI_Offset len;
    must(MPI_File_get_size(file, &len), "get_size");
    check(len == behind + (MPI_Offset)ranks * LARGE, "the length");
    for (int round = 0; round < ROUNDS; round++)
        for (int of = 0; of < ranks; of++) {
            MPI_Offset at = ((MPI_Offset)round * ranks + of) * BLOCK;
            must(MPI_File_read_at(file, at, seen, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
            for (int i = 0; i < BLOCK; i++) check(seen[i] == byte_at(of + 20, (size_t)round * BLOCK + i), "a stripe");
        }
    for (int of = 0; of < ranks; of++) {
        must(MPI_File_read_at(file, behind + (MPI_Offset)of * LARGE, large, LARGE, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
        check(memcmp(large + 12345, "overwritten", 11) == 0, "what was overwritten");
        for (size_t i = 0; i < LARGE; i++)
            check(large[i] == byte_at(of + 7, i) || (i >= 12345 && i < 12356), "a large range");
    }
    must(MPI_File_close(&file), "close");
    if (rank == 0) printf("%lld bytes of %d ranks\n", (long long)len, ranks);
    MPI_Type_free(&stripes);
    MPI_Info_free(&info);
    MPI_Finalize();
    return 0;
}

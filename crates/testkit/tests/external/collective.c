/*
 * The ranks of an MPI program write the same file by MPI-IO. Then each rank reads a part that another
 * rank has written.
 *
 * collective DIRECTORY DIRECTORY-ON-THE-OTHER-MOUNT: even ranks use the first directory, odd ranks the
 * second.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 50021, BLOCKS = 60, SPARSE = 700, SPARSES = 300, LINES = 40 };

static int rank, ranks;

static void must(int code, const char *what)
{
    char said[MPI_MAX_ERROR_STRING];
    int length;

    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, said, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, said);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Returns the expected byte at an offset. Each round has other bytes, so the check finds old bytes. */
static unsigned char expected(MPI_Offset place, int round)
{
    return (unsigned char)(place * 7 + place / 4096 + 31 * round + 1);
}

static MPI_File opened(char *const *paths, int mode)
{
    MPI_File file;
    MPI_Info info;

    MPI_Info_create(&info);
    MPI_Info_set(info, "romio_cb_write", "enable");
    MPI_Info_set(info, "romio_ds_write", "enable");
    must(MPI_File_open(MPI_COMM_WORLD, paths[rank % 2], mode, info, &file), "open");
    MPI_Info_free(&info);
    return file;
}

/*
 * Divides the file into blocks of `length` bytes, which belong to the parts in turn. Makes only the
 * blocks of `part` visible.
 */
static void divide(MPI_File file, int part, int length, int count)
{
    MPI_Datatype type;

    MPI_Type_vector(count, length, length * ranks, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    must(MPI_File_set_view(file, (MPI_Offset)part * length, MPI_BYTE, type, "native",
                           MPI_INFO_NULL), "set_view");
    MPI_Type_free(&type);
}

static void fill(unsigned char *bytes, int part, int length, int count, int round)
{
    for (int block = 0; block < count; block++)
        for (int at = 0; at < length; at++)
            bytes[(size_t)block * length + at] =
                expected(((MPI_Offset)block * ranks + part) * length + at, round);
}

static void compare(const unsigned char *bytes, int part, int length, int count, int round,
                    const char *what)
{
    for (int block = 0; block < count; block++)
        for (int at = 0; at < length; at++) {
            MPI_Offset place = ((MPI_Offset)block * ranks + part) * length + at;
            unsigned char found = bytes[(size_t)block * length + at];

            if (found != expected(place, round)) {
                fprintf(stderr, "rank %d: %s, round %d: byte %lld is %d, not %d\n", rank, what,
                        round, (long long)place, found, expected(place, round));
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
}

/* All ranks write and read by collective calls. Each rank reads a part from the other mount. */
static void collective(char *const *paths, int round)
{
    int size = BLOCK * BLOCKS;
    unsigned char *bytes = malloc(size);
    MPI_File file = opened(paths, MPI_MODE_CREATE | MPI_MODE_RDWR);

    divide(file, rank, BLOCK, BLOCKS);
    fill(bytes, rank, BLOCK, BLOCKS, round);
    must(MPI_File_write_all(file, bytes, size, MPI_BYTE, MPI_STATUS_IGNORE), "write_all");
    must(MPI_File_close(&file), "close");
    file = opened(paths, MPI_MODE_RDONLY);
    memset(bytes, 0, size);
    int part = (rank + 1) % ranks;
    divide(file, part, BLOCK, BLOCKS);
    must(MPI_File_read_all(file, bytes, size, MPI_BYTE, MPI_STATUS_IGNORE), "read_all");
    compare(bytes, part, BLOCK, BLOCKS, round, "collective");
    MPI_Offset length;
    must(MPI_File_get_size(file, &length), "get_size");
    if (length != (MPI_Offset)size * ranks) {
        fprintf(stderr, "rank %d: %lld bytes\n", rank, (long long)length);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    must(MPI_File_close(&file), "close");
    free(bytes);
}

/*
 * Each rank writes small blocks by calls of its own. For such blocks, the library locks a whole range,
 * reads it, changes the blocks, and writes the range back (data sieving).
 */
static void sieved(char *const *paths, int round)
{
    int size = SPARSE * SPARSES;
    unsigned char *bytes = malloc(size);
    MPI_File file = opened(paths, MPI_MODE_CREATE | MPI_MODE_RDWR);

    divide(file, rank, SPARSE, SPARSES);
    fill(bytes, rank, SPARSE, SPARSES, round);
    must(MPI_File_write(file, bytes, size, MPI_BYTE, MPI_STATUS_IGNORE), "write");
    must(MPI_File_close(&file), "close");
    file = opened(paths, MPI_MODE_RDONLY);
    for (int part = 0; part < ranks; part++) {
        memset(bytes, 0, size);
        divide(file, part, SPARSE, SPARSES);
        must(MPI_File_read(file, bytes, size, MPI_BYTE, MPI_STATUS_IGNORE), "read");
        compare(bytes, part, SPARSE, SPARSES, round, "sieved");
    }
    must(MPI_File_close(&file), "close");
    free(bytes);
}

/* All ranks append lines by a shared file pointer. The file must contain each line once. */
static void shared(char *const *paths)
{
    char line[32];
    MPI_File file = opened(paths, MPI_MODE_CREATE | MPI_MODE_RDWR);

    for (int number = 0; number < LINES; number++) {
        int length = snprintf(line, sizeof line, "rank %03d line %03d\n", rank, number);

        must(MPI_File_write_shared(file, line, length, MPI_BYTE, MPI_STATUS_IGNORE),
             "write_shared");
    }
    must(MPI_File_close(&file), "close");
}

int main(int count, char **words)
{
    char *first[2], *second[2], *third[2];

    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    for (int mount = 0; mount < 2; mount++) {
        first[mount] = malloc(4096);
        second[mount] = malloc(4096);
        third[mount] = malloc(4096);
        snprintf(first[mount], 4096, "%s/collective", words[1 + mount]);
        snprintf(second[mount], 4096, "%s/sieved", words[1 + mount]);
        snprintf(third[mount], 4096, "%s/shared", words[1 + mount]);
    }
    for (int round = 0; round < 4; round++) {
        collective(first, round);
        sieved(second, round);
    }
    shared(third);
    if (rank == 0)
        printf("%d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}

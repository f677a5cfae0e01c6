/* Four ranks write one NetCDF file with PnetCDF, each through the directory that it is given. */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, COLUMNS = 50000 };

static int rank, ranks;

static void must(int code, const char *what) {
    if (code != NC_NOERR) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, what, ncmpi_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char path[4096];
    snprintf(path, sizeof path, "%s/field.nc", argv[1 + rank % (argc - 1)]);
    int nc, dims[2], field, log;
    must(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &nc), "create");
    must(ncmpi_def_dim(nc, "row", ROWS, &dims[0]), "def_dim");
    must(ncmpi_def_dim(nc, "column", COLUMNS, &dims[1]), "def_dim");
    must(ncmpi_def_var(nc, "field", NC_FLOAT, 2, dims, &field), "def_var");
    must(ncmpi_def_var(nc, "log", NC_INT, 1, dims, &log), "def_var");
    must(ncmpi_put_att_text(nc, NC_GLOBAL, "title", 12, "written once"), "put_att");
    must(ncmpi_enddef(nc), "enddef");
    /* Columns are shared out, so that each row is of all. */
    MPI_Offset width = COLUMNS / ranks, start[2] = {0, rank * width}, count[2] = {ROWS, width};
    float *mine = malloc(ROWS * width * sizeof *mine);
    for (MPI_Offset i = 0; i < ROWS * width; i++) mine[i] = (float)(rank * 1000 + i % 977);
    must(ncmpi_put_vara_float_all(nc, field, start, count, mine), "put_vara_all");
    /* And single values, each rank by itself. */
    must(ncmpi_begin_indep_data(nc), "begin_indep_data");
    for (MPI_Offset row = rank; row < ROWS; row += ranks) {
        int value = (int)row * 3;
        must(ncmpi_put_var1_int(nc, log, &row, &value), "put_var1");
    }
    must(ncmpi_end_indep_data(nc), "end_indep_data");
    must(ncmpi_close(nc), "close");
    free(mine);
    MPI_Finalize();
    return 0;
}

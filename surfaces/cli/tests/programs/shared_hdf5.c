/* Four ranks write one dataset with parallel HDF5, each through the directory that it is given, and read their neighbour's rows before the file is closed. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 40, COLUMNS = 30000 };

static int rank, ranks;

static hid_t must(hid_t code, const char *what) {
    if (code < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return code;
}

static void rows(hid_t data, int of, int *values, int writes) {
    hsize_t start[2] = {(hsize_t)of * ROWS, 0}, count[2] = {ROWS, COLUMNS};
    hid_t there = must(H5Dget_space(data), "get_space");
    hid_t here = must(H5Screate_simple(2, count, NULL), "create_simple");
    must(H5Sselect_hyperslab(there, H5S_SELECT_SET, start, NULL, count, NULL), "select");
    hid_t how = must(H5Pcreate(H5P_DATASET_XFER), "transfer");
    must(H5Pset_dxpl_mpio(how, H5FD_MPIO_COLLECTIVE), "collective");
    if (writes) must(H5Dwrite(data, H5T_NATIVE_INT, here, there, how, values), "write");
    else must(H5Dread(data, H5T_NATIVE_INT, here, there, how, values), "read");
    H5Pclose(how);
    H5Sclose(here);
    H5Sclose(there);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char path[4096];
    snprintf(path, sizeof path, "%s/field.h5", argv[1 + rank % (argc - 1)]);
    hid_t access = must(H5Pcreate(H5P_FILE_ACCESS), "access");
    must(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL), "mpio");
    hid_t file = must(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access), "create");
    hsize_t size[2] = {(hsize_t)ranks * ROWS, COLUMNS};
    hid_t space = must(H5Screate_simple(2, size, NULL), "space");
    hid_t data = must(H5Dcreate2(file, "field", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "dataset");
    int *values = malloc(sizeof(int) * ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = rank * 1000003 + i;
    rows(data, rank, values, 1);
    must(H5Fflush(file, H5F_SCOPE_GLOBAL), "flush");
    MPI_Barrier(MPI_COMM_WORLD);
    int next = (rank + 1) % ranks;
    rows(data, next, values, 0);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        if (values[i] != next * 1000003 + i) must(-1, "the neighbour's rows are not what it wrote");
    H5Dclose(data);
    H5Sclose(space);
    must(H5Fclose(file), "close");
    H5Pclose(access);
    free(values);
    MPI_Finalize();
    return 0;
}

"""Tests in the folders below import :mod:`watching`, which lies beside this file."""

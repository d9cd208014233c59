"""Tests of a3c_tf; a package, so that other processes can import the environments."""

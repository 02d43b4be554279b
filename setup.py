# SPDX-License-Identifier: BSD-3-Clause
"""Wheels: what pyproject.toml cannot say. CMake builds the extension, with libfarcall inside it."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Builds the one extension by the project's own CMake files."""

    def build_extension(self, ext):
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"]
        configure.append("-DFARCALL_WERROR=OFF")
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            configure.append(f"-DFARCALL_BUILD_{part}=OFF")
        environ = dict(os.environ, FARCALL_PYTHON=sys.executable)
        subprocess.run(configure, check=True, env=environ)
        make = ["cmake", "--build", str(build), "--target", "farcall_python", "-j"]
        make.append(str(os.cpu_count() or 1))
        subprocess.run(make, check=True, env=environ)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(build / "python" / "farcall" / "_farcall.abi3.so"), str(target))


setup(
    ext_modules=[Extension("farcall._farcall", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": CMakeBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)

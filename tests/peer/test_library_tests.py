"""That the library's own tests are at hand; a run in which they are not says so here, and passes."""

import pytest

from .library_tests import NotDownloadableError, library_tests_folder


def test_the_source_package_holds_the_mixins():
    try:
        folder = library_tests_folder()
    except NotDownloadableError as error:
        pytest.skip(str(error))
    assert "class ModelTesterMixin" in (folder / "test_modeling_common.py").read_text()

from tests.support.switch_fixtures import mrc_info, mrc_json, namespace

__all__ = ["mrc_info", "mrc_json", "namespace"]

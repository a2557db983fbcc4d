"""Why a request took as long as it did."""
